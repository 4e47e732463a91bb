-- A record as version 1 of its tables wrote it, of the run that journals.finished() makes.
BEGIN TRANSACTION;
CREATE TABLE entries (
  run TEXT NOT NULL REFERENCES runs ON DELETE CASCADE,
  number INTEGER NOT NULL,        
  kind TEXT NOT NULL,
  at_unix REAL,
  offset_bytes INTEGER NOT NULL,
  size_bytes INTEGER NOT NULL,
  PRIMARY KEY (run, number)
) WITHOUT ROWID;
INSERT INTO "entries" VALUES('20261129-120000-aaaaaa',1,'start',1000.0,0,177);
INSERT INTO "entries" VALUES('20261129-120000-aaaaaa',2,'trial',1000.0,177,377);
INSERT INTO "entries" VALUES('20261129-120000-aaaaaa',3,'trial',1000.0,554,601);
INSERT INTO "entries" VALUES('20261129-120000-aaaaaa',4,'verdict',1000.0,1155,98);
CREATE TABLE evidence (           
  run TEXT NOT NULL REFERENCES runs ON DELETE CASCADE,
  trial INTEGER NOT NULL,
  text INTEGER NOT NULL,          
  prompt TEXT NOT NULL,
  how TEXT NOT NULL,
  kind TEXT NOT NULL,
  worst_gap_nats REAL,
  PRIMARY KEY (run, trial, text)
) WITHOUT ROWID;
INSERT INTO "evidence" VALUES('20261129-120000-aaaaaa',2,0,'poem','alone','garbled',9.5);
INSERT INTO "evidence" VALUES('20261129-120000-aaaaaa',2,2,'poem','together','no_answer',9.5);
CREATE TABLE hosts (
  run TEXT NOT NULL REFERENCES runs ON DELETE CASCADE,
  host TEXT NOT NULL,
  position INTEGER NOT NULL,
  left_out TEXT,                  
  facts INTEGER,                  
  PRIMARY KEY (run, host)
) WITHOUT ROWID;
INSERT INTO "hosts" VALUES('20261129-120000-aaaaaa','box',0,NULL,NULL);
CREATE TABLE runs (
  run TEXT PRIMARY KEY,
  program TEXT NOT NULL,          
  name TEXT NOT NULL,             
  began_unix REAL,
  ended_unix REAL,
  verdict TEXT,                   
  culprit TEXT,
  problem TEXT,                   
  size_bytes INTEGER NOT NULL,    
  mtime_ns INTEGER NOT NULL,
  inode INTEGER NOT NULL,
  read_bytes INTEGER NOT NULL,    
  last_hash TEXT NOT NULL         
) WITHOUT ROWID;
INSERT INTO "runs" VALUES('20261129-120000-aaaaaa','bisect','mine',1000.0,1000.0,'culprit','budget=16',NULL,1253,1795998587856686164,2728839,1253,'15f36ff68669fa0944c70b55f62284ee095d42ca6c98908a5bb035f53c415cb5');
CREATE TABLE steps (
  run TEXT NOT NULL REFERENCES runs ON DELETE CASCADE,
  entry INTEGER NOT NULL,
  step TEXT NOT NULL,             
  kind TEXT NOT NULL,
  state TEXT NOT NULL,
  seconds REAL,
  PRIMARY KEY (run, entry)
) WITHOUT ROWID;
CREATE TABLE trials (
  run TEXT NOT NULL REFERENCES runs ON DELETE CASCADE,
  number INTEGER NOT NULL,
  entry INTEGER NOT NULL,
  host TEXT NOT NULL,
  outcome TEXT NOT NULL,
  signature TEXT NOT NULL,
  purpose TEXT NOT NULL,
  reason TEXT NOT NULL,
  config TEXT NOT NULL,           
  effective TEXT NOT NULL,        
  garbled_alone INTEGER NOT NULL,
  asked_alone INTEGER NOT NULL,
  garbled_together INTEGER NOT NULL,
  asked_together INTEGER NOT NULL,
  start_s REAL NOT NULL,
  total_s REAL NOT NULL,
  PRIMARY KEY (run, number)
) WITHOUT ROWID;
INSERT INTO "trials" VALUES('20261129-120000-aaaaaa',1,2,'box','pass','','because','seen','{"budget": 7}','{"budget": 7}',0,1,0,0,1.0,2.0);
INSERT INTO "trials" VALUES('20261129-120000-aaaaaa',2,3,'box','fail','','because','seen','{"budget": 16}','{"budget": 16}',1,2,1,1,1.0,2.0);
CREATE TABLE verdicts (
  run TEXT NOT NULL REFERENCES runs ON DELETE CASCADE,
  entry INTEGER NOT NULL,
  verdict TEXT NOT NULL,
  culprit TEXT,
  PRIMARY KEY (run, entry)
) WITHOUT ROWID;
INSERT INTO "verdicts" VALUES('20261129-120000-aaaaaa',4,'culprit','budget=16');
COMMIT;
PRAGMA user_version = 1;
