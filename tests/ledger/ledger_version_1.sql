--head 83d05abc22afbd0ecf563dd3b7c9bfdd1d9622f0871f79683e733c6b0d71140c
BEGIN TRANSACTION;
CREATE TABLE mbde_accounts (
	number INTEGER NOT NULL, 
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
INSERT INTO "mbde_accounts" VALUES(1,'a',10.0,1.0e-06,'pure',1.0e-06,'2026-11-28T17:56:01.773611+00:00','f271c9b5c5c71a2a42f49d973567552ff6b678fbf593e9e762f6be30ff674dbb','f2c69a0288937fc8adea0efbd6c53189c0e50a8e9ac9edf5de2be681ed8ace52');
INSERT INTO "mbde_accounts" VALUES(2,'b',10.0,1.0e-06,'zcdp',1.0e-07,'2026-11-28T17:56:01.789682+00:00','f2c69a0288937fc8adea0efbd6c53189c0e50a8e9ac9edf5de2be681ed8ace52','a177b6aeb4da4d7bb585735a225c11f85fd9693eacecf6f82adab53b0d9c503b');
CREATE TABLE mbde_charges (
	number INTEGER NOT NULL, 
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
INSERT INTO "mbde_charges" VALUES(3,'a','2026-11-28T17:56:01.803586+00:00','084fed08b978af4d7d196a7446a86b58009e636b611db16211b65a9aadff29c5',3,0.1,0.0,0.1,'look 3','Ann','a177b6aeb4da4d7bb585735a225c11f85fd9693eacecf6f82adab53b0d9c503b','ae6389993b448439fef7d1de599370289b1c924f860f2d146dd339b2857e240e');
INSERT INTO "mbde_charges" VALUES(4,'b','2026-11-28T17:56:01.806600+00:00','e52d9c508c502347344d8c07ad91cbd6068afc75ff6292f062a09ca381c89e71',4,0.1,0.0,0.1,'look 4','Ann','ae6389993b448439fef7d1de599370289b1c924f860f2d146dd339b2857e240e','1ec062b006a98e9e5b784da774d5614ed12230a6f0c7e44fe435d901f8b12c55');
INSERT INTO "mbde_charges" VALUES(5,'a','2026-11-28T17:56:01.814450+00:00','e77b9a9ae9e30b0dbdb6f510a264ef9de781501d7b6b92ae89eb059c5ab743db',5,0.1,0.0,0.1,'look 5','Ann','1ec062b006a98e9e5b784da774d5614ed12230a6f0c7e44fe435d901f8b12c55','2059152593010d2b8e4ae98569bb89d9bc6c9c3a3a7f60db561a93a56a9eb47b');
INSERT INTO "mbde_charges" VALUES(6,'b','2026-11-28T17:56:01.816422+00:00','67586e98fad27da0b9968bc039a1ef34c939b9b8e523a8bef89d478608c5ecf6',6,0.1,0.0,0.1,'look 6','Ann','2059152593010d2b8e4ae98569bb89d9bc6c9c3a3a7f60db561a93a56a9eb47b','cf786e4b17af136cfc864eda35032e26440a76eb37b9d9213823715b10707445');
INSERT INTO "mbde_charges" VALUES(7,'a','2026-11-28T17:56:01.826340+00:00','ca358758f6d27e6cf45272937977a748fd88391db679ceda7dc7bf1f005ee879',7,0.1,0.0,0.1,'look 7','Ann','cf786e4b17af136cfc864eda35032e26440a76eb37b9d9213823715b10707445','47c63bdc01e905eaa75dfeb50e48ae8ccfd35f3e8f753ec7c8065907e238f67f');
INSERT INTO "mbde_charges" VALUES(8,'b','2026-11-28T17:56:01.830229+00:00','beead77994cf573341ec17b58bbf7eb34d2711c993c1d976b128b3188dc1829a',8,0.1,0.0,0.1,'look 8','Ann','47c63bdc01e905eaa75dfeb50e48ae8ccfd35f3e8f753ec7c8065907e238f67f','9b8c1196c1ead2b2648594dce8eb33c353ec31c3344906777e84038369c4827d');
INSERT INTO "mbde_charges" VALUES(9,'a','2026-11-28T17:56:01.834157+00:00','2b4c342f5433ebe591a1da77e013d1b72475562d48578dca8b84bac6651c3cb9',9,0.1,0.0,0.1,'look 9','Ann','9b8c1196c1ead2b2648594dce8eb33c353ec31c3344906777e84038369c4827d','44c62573e08f560423552fbde39cb42c6053b98101109bcb386f198b4e93cf16');
INSERT INTO "mbde_charges" VALUES(10,'b','2026-11-28T17:56:01.838212+00:00','01ba4719c80b6fe911b091a7c05124b64eeece964e09c058ef8f9805daca546b',10,0.1,0.0,0.1,'look 10','Ann','44c62573e08f560423552fbde39cb42c6053b98101109bcb386f198b4e93cf16','83d05abc22afbd0ecf563dd3b7c9bfdd1d9622f0871f79683e733c6b0d71140c');
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
INSERT INTO "mbde_ledger" VALUES(1,1,'c2621b73df28468d84d778b672c2bc06','2026-11-28T17:56:01.730719+00:00',10,'83d05abc22afbd0ecf563dd3b7c9bfdd1d9622f0871f79683e733c6b0d71140c');
CREATE TABLE mbde_tallies (
	account TEXT NOT NULL, 
	fingerprint TEXT NOT NULL, 
	epsilon DOUBLE NOT NULL, 
	delta DOUBLE NOT NULL, 
	log_ratio_range DOUBLE NOT NULL, 
	num_draws BIGINT NOT NULL, 
	PRIMARY KEY (account, fingerprint, epsilon, delta, log_ratio_range), 
	FOREIGN KEY(account) REFERENCES mbde_accounts (name)
)
 WITHOUT ROWID

;
INSERT INTO "mbde_tallies" VALUES('a','084fed08b978af4d7d196a7446a86b58009e636b611db16211b65a9aadff29c5',0.1,0.0,0.1,3);
INSERT INTO "mbde_tallies" VALUES('a','2b4c342f5433ebe591a1da77e013d1b72475562d48578dca8b84bac6651c3cb9',0.1,0.0,0.1,9);
INSERT INTO "mbde_tallies" VALUES('a','ca358758f6d27e6cf45272937977a748fd88391db679ceda7dc7bf1f005ee879',0.1,0.0,0.1,7);
INSERT INTO "mbde_tallies" VALUES('a','e77b9a9ae9e30b0dbdb6f510a264ef9de781501d7b6b92ae89eb059c5ab743db',0.1,0.0,0.1,5);
INSERT INTO "mbde_tallies" VALUES('b','01ba4719c80b6fe911b091a7c05124b64eeece964e09c058ef8f9805daca546b',0.1,0.0,0.1,10);
INSERT INTO "mbde_tallies" VALUES('b','67586e98fad27da0b9968bc039a1ef34c939b9b8e523a8bef89d478608c5ecf6',0.1,0.0,0.1,6);
INSERT INTO "mbde_tallies" VALUES('b','beead77994cf573341ec17b58bbf7eb34d2711c993c1d976b128b3188dc1829a',0.1,0.0,0.1,8);
INSERT INTO "mbde_tallies" VALUES('b','e52d9c508c502347344d8c07ad91cbd6068afc75ff6292f062a09ca381c89e71',0.1,0.0,0.1,4);
CREATE INDEX ix_mbde_charges_account ON mbde_charges (account);
CREATE TRIGGER mbde_accounts_no_update BEFORE UPDATE ON mbde_accounts FOR EACH ROW BEGIN SELECT RAISE(ABORT, 'rows of a ledger are only ever added'); END;
CREATE TRIGGER mbde_accounts_no_delete BEFORE DELETE ON mbde_accounts FOR EACH ROW BEGIN SELECT RAISE(ABORT, 'rows of a ledger are only ever added'); END;
CREATE TRIGGER mbde_accounts_no_replace BEFORE INSERT ON mbde_accounts FOR EACH ROW WHEN (EXISTS (SELECT 1 FROM mbde_accounts WHERE number = NEW.number OR name = NEW.name)) BEGIN SELECT RAISE(ABORT, 'rows of a ledger are only ever added'); END;
CREATE TRIGGER mbde_charges_no_update BEFORE UPDATE ON mbde_charges FOR EACH ROW BEGIN SELECT RAISE(ABORT, 'rows of a ledger are only ever added'); END;
CREATE TRIGGER mbde_charges_no_delete BEFORE DELETE ON mbde_charges FOR EACH ROW BEGIN SELECT RAISE(ABORT, 'rows of a ledger are only ever added'); END;
CREATE TRIGGER mbde_charges_no_replace BEFORE INSERT ON mbde_charges FOR EACH ROW WHEN (EXISTS (SELECT 1 FROM mbde_charges WHERE number = NEW.number)) BEGIN SELECT RAISE(ABORT, 'rows of a ledger are only ever added'); END;
CREATE TRIGGER mbde_ledger_no_update BEFORE UPDATE ON mbde_ledger FOR EACH ROW WHEN (NEW.id <> OLD.id OR NEW.version < OLD.version OR NEW.identity <> OLD.identity OR NEW.created <> OLD.created OR NEW.number < OLD.number OR NEW.number > OLD.number + 1 OR (NEW.number = OLD.number AND NEW.hash <> OLD.hash)) BEGIN SELECT RAISE(ABORT, 'rows of a ledger are only ever added'); END;
CREATE TRIGGER mbde_ledger_no_delete BEFORE DELETE ON mbde_ledger FOR EACH ROW BEGIN SELECT RAISE(ABORT, 'rows of a ledger are only ever added'); END;
CREATE TRIGGER mbde_ledger_no_replace BEFORE INSERT ON mbde_ledger FOR EACH ROW WHEN (EXISTS (SELECT 1 FROM mbde_ledger WHERE id = NEW.id)) BEGIN SELECT RAISE(ABORT, 'rows of a ledger are only ever added'); END;
CREATE TRIGGER mbde_tallies_no_update BEFORE UPDATE ON mbde_tallies FOR EACH ROW WHEN (NEW.account <> OLD.account OR NEW.fingerprint <> OLD.fingerprint OR NEW.epsilon <> OLD.epsilon OR NEW.delta <> OLD.delta OR NEW.log_ratio_range <> OLD.log_ratio_range OR NEW.num_draws < OLD.num_draws) BEGIN SELECT RAISE(ABORT, 'rows of a ledger are only ever added'); END;
CREATE TRIGGER mbde_tallies_no_delete BEFORE DELETE ON mbde_tallies FOR EACH ROW BEGIN SELECT RAISE(ABORT, 'rows of a ledger are only ever added'); END;
CREATE TRIGGER mbde_tallies_no_replace BEFORE INSERT ON mbde_tallies FOR EACH ROW WHEN (EXISTS (SELECT 1 FROM mbde_tallies WHERE account = NEW.account AND fingerprint = NEW.fingerprint AND epsilon = NEW.epsilon AND delta = NEW.delta AND log_ratio_range = NEW.log_ratio_range)) BEGIN SELECT RAISE(ABORT, 'rows of a ledger are only ever added'); END;
COMMIT;
