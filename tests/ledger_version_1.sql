--head 5ce49a58729a65b14efa1b7a8ab1d97e6b661f0048728b91f34e14cad4f3f7e1
BEGIN TRANSACTION;
CREATE TABLE mbde_accounts (
	number BIGINT NOT NULL, 
	name TEXT NOT NULL, 
	epsilon DOUBLE NOT NULL, 
	delta DOUBLE NOT NULL, 
	rule TEXT NOT NULL, 
	certificate_delta DOUBLE NOT NULL, 
	opened TEXT NOT NULL, 
	previous TEXT NOT NULL, 
	hash TEXT NOT NULL, 
	PRIMARY KEY (number), 
	UNIQUE (name)
);
INSERT INTO "mbde_accounts" VALUES(1,'a',10.0,1.0e-06,'pure',1.0e-06,'2026-11-28T16:42:01.777702+00:00','b213324c75157484bbca1015877354c446bc262838849da1775401b9e323451c','e253aad27a07240076d76eb52a11851d7a26f8f0220406823a3eaefc2f182de8');
INSERT INTO "mbde_accounts" VALUES(2,'b',10.0,1.0e-06,'zcdp',1.0e-07,'2026-11-28T16:42:01.793641+00:00','e253aad27a07240076d76eb52a11851d7a26f8f0220406823a3eaefc2f182de8','644bbdf807412a8a3f5fbd22fdc0c063b76bbac8fbf09b6d82f26870b509c378');
CREATE TABLE mbde_charges (
	number BIGINT NOT NULL, 
	account TEXT NOT NULL, 
	charged TEXT NOT NULL, 
	fingerprint TEXT NOT NULL, 
	num_draws BIGINT NOT NULL, 
	epsilon DOUBLE NOT NULL, 
	delta DOUBLE NOT NULL, 
	log_ratio_range DOUBLE NOT NULL, 
	purpose TEXT NOT NULL, 
	who TEXT NOT NULL, 
	previous TEXT NOT NULL, 
	hash TEXT NOT NULL, 
	PRIMARY KEY (number), 
	CHECK (num_draws > 0), 
	FOREIGN KEY(account) REFERENCES mbde_accounts (name)
);
INSERT INTO "mbde_charges" VALUES(3,'a','2026-11-28T16:42:01.799988+00:00','084fed08b978af4d7d196a7446a86b58009e636b611db16211b65a9aadff29c5',3,0.1,0.0,0.1,'look 3','Ann','644bbdf807412a8a3f5fbd22fdc0c063b76bbac8fbf09b6d82f26870b509c378','3bddcfc811a77ab1fb765ffa5ea386c56eb33a080620c4511f30bcb17f51fea2');
INSERT INTO "mbde_charges" VALUES(4,'b','2026-11-28T16:42:01.806814+00:00','e52d9c508c502347344d8c07ad91cbd6068afc75ff6292f062a09ca381c89e71',4,0.1,0.0,0.1,'look 4','Ann','3bddcfc811a77ab1fb765ffa5ea386c56eb33a080620c4511f30bcb17f51fea2','f79bf049a01ba0e5e1e4b5b17ccb5209297c9eefe514c1be5435432928be605e');
INSERT INTO "mbde_charges" VALUES(5,'a','2026-11-28T16:42:01.810265+00:00','e77b9a9ae9e30b0dbdb6f510a264ef9de781501d7b6b92ae89eb059c5ab743db',5,0.1,0.0,0.1,'look 5','Ann','f79bf049a01ba0e5e1e4b5b17ccb5209297c9eefe514c1be5435432928be605e','aaae6259fdcbdf9a198bb187af7e895665668e42b464c52fa1af10537ce4c477');
INSERT INTO "mbde_charges" VALUES(6,'b','2026-11-28T16:42:01.814250+00:00','67586e98fad27da0b9968bc039a1ef34c939b9b8e523a8bef89d478608c5ecf6',6,0.1,0.0,0.1,'look 6','Ann','aaae6259fdcbdf9a198bb187af7e895665668e42b464c52fa1af10537ce4c477','c3573d80b5c105bcefe1ed712983ebf2535a42bc5b492bfb4ae8821a79e33634');
INSERT INTO "mbde_charges" VALUES(7,'a','2026-11-28T16:42:01.818350+00:00','ca358758f6d27e6cf45272937977a748fd88391db679ceda7dc7bf1f005ee879',7,0.1,0.0,0.1,'look 7','Ann','c3573d80b5c105bcefe1ed712983ebf2535a42bc5b492bfb4ae8821a79e33634','8cc345d3825bab9b4df1b8db8cdf92a3c8a1b5e59810d5b6cfeeed4f5243af26');
INSERT INTO "mbde_charges" VALUES(8,'b','2026-11-28T16:42:01.822463+00:00','beead77994cf573341ec17b58bbf7eb34d2711c993c1d976b128b3188dc1829a',8,0.1,0.0,0.1,'look 8','Ann','8cc345d3825bab9b4df1b8db8cdf92a3c8a1b5e59810d5b6cfeeed4f5243af26','63c6e3c27be36ad6efda42c205f1b8a6591834caab612696a68936e4fb99d912');
INSERT INTO "mbde_charges" VALUES(9,'a','2026-11-28T16:42:01.826165+00:00','2b4c342f5433ebe591a1da77e013d1b72475562d48578dca8b84bac6651c3cb9',9,0.1,0.0,0.1,'look 9','Ann','63c6e3c27be36ad6efda42c205f1b8a6591834caab612696a68936e4fb99d912','7838ea691ad85dbf416f57667122783843a8e91450485c2937bb18a8e8244d86');
INSERT INTO "mbde_charges" VALUES(10,'b','2026-11-28T16:42:01.830281+00:00','01ba4719c80b6fe911b091a7c05124b64eeece964e09c058ef8f9805daca546b',10,0.1,0.0,0.1,'look 10','Ann','7838ea691ad85dbf416f57667122783843a8e91450485c2937bb18a8e8244d86','5ce49a58729a65b14efa1b7a8ab1d97e6b661f0048728b91f34e14cad4f3f7e1');
CREATE TABLE mbde_ledger (
	id INTEGER NOT NULL, 
	version INTEGER NOT NULL, 
	identity TEXT NOT NULL, 
	created TEXT NOT NULL, 
	number BIGINT NOT NULL, 
	hash TEXT NOT NULL, 
	PRIMARY KEY (id), 
	CHECK (id = 1)
);
INSERT INTO "mbde_ledger" VALUES(1,1,'19daa4cdf23a4b84a4f515d7bdca16ba','2026-11-28T16:42:01.742048+00:00',10,'5ce49a58729a65b14efa1b7a8ab1d97e6b661f0048728b91f34e14cad4f3f7e1');
CREATE TABLE mbde_tallies (
	account TEXT NOT NULL, 
	fingerprint TEXT NOT NULL, 
	epsilon DOUBLE NOT NULL, 
	delta DOUBLE NOT NULL, 
	log_ratio_range DOUBLE NOT NULL, 
	num_draws BIGINT NOT NULL, 
	PRIMARY KEY (account, fingerprint, epsilon, delta, log_ratio_range), 
	FOREIGN KEY(account) REFERENCES mbde_accounts (name)
);
INSERT INTO "mbde_tallies" VALUES('a','084fed08b978af4d7d196a7446a86b58009e636b611db16211b65a9aadff29c5',0.1,0.0,0.1,3);
INSERT INTO "mbde_tallies" VALUES('b','e52d9c508c502347344d8c07ad91cbd6068afc75ff6292f062a09ca381c89e71',0.1,0.0,0.1,4);
INSERT INTO "mbde_tallies" VALUES('a','e77b9a9ae9e30b0dbdb6f510a264ef9de781501d7b6b92ae89eb059c5ab743db',0.1,0.0,0.1,5);
INSERT INTO "mbde_tallies" VALUES('b','67586e98fad27da0b9968bc039a1ef34c939b9b8e523a8bef89d478608c5ecf6',0.1,0.0,0.1,6);
INSERT INTO "mbde_tallies" VALUES('a','ca358758f6d27e6cf45272937977a748fd88391db679ceda7dc7bf1f005ee879',0.1,0.0,0.1,7);
INSERT INTO "mbde_tallies" VALUES('b','beead77994cf573341ec17b58bbf7eb34d2711c993c1d976b128b3188dc1829a',0.1,0.0,0.1,8);
INSERT INTO "mbde_tallies" VALUES('a','2b4c342f5433ebe591a1da77e013d1b72475562d48578dca8b84bac6651c3cb9',0.1,0.0,0.1,9);
INSERT INTO "mbde_tallies" VALUES('b','01ba4719c80b6fe911b091a7c05124b64eeece964e09c058ef8f9805daca546b',0.1,0.0,0.1,10);
CREATE INDEX ix_mbde_charges_account ON mbde_charges (account);
CREATE TRIGGER mbde_accounts_no_update BEFORE UPDATE ON mbde_accounts FOR EACH ROW BEGIN SELECT RAISE(ABORT, 'rows of a ledger are only ever added'); END;
CREATE TRIGGER mbde_accounts_no_delete BEFORE DELETE ON mbde_accounts FOR EACH ROW BEGIN SELECT RAISE(ABORT, 'rows of a ledger are only ever added'); END;
CREATE TRIGGER mbde_charges_no_update BEFORE UPDATE ON mbde_charges FOR EACH ROW BEGIN SELECT RAISE(ABORT, 'rows of a ledger are only ever added'); END;
CREATE TRIGGER mbde_charges_no_delete BEFORE DELETE ON mbde_charges FOR EACH ROW BEGIN SELECT RAISE(ABORT, 'rows of a ledger are only ever added'); END;
CREATE TRIGGER mbde_ledger_no_update BEFORE UPDATE ON mbde_ledger FOR EACH ROW WHEN (NEW.number < OLD.number) BEGIN SELECT RAISE(ABORT, 'rows of a ledger are only ever added'); END;
CREATE TRIGGER mbde_ledger_no_delete BEFORE DELETE ON mbde_ledger FOR EACH ROW BEGIN SELECT RAISE(ABORT, 'rows of a ledger are only ever added'); END;
CREATE TRIGGER mbde_tallies_no_update BEFORE UPDATE ON mbde_tallies FOR EACH ROW WHEN (NEW.num_draws < OLD.num_draws) BEGIN SELECT RAISE(ABORT, 'rows of a ledger are only ever added'); END;
CREATE TRIGGER mbde_tallies_no_delete BEFORE DELETE ON mbde_tallies FOR EACH ROW BEGIN SELECT RAISE(ABORT, 'rows of a ledger are only ever added'); END;
COMMIT;
