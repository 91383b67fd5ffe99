"""A database in every journal mode, with readers in other processes, and SQLite's own integrity check."""
import os
import sqlite3
import subprocess
import sys

READER = """
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], timeout=60)
seen = 0
while seen < int(sys.argv[2]):
    count, total = db.execute("select count(*), coalesce(sum(balance), 0) from account").fetchone()
    assert total == 0, f"a torn transaction: {total} over {count}"
    assert count >= seen, f"rows went from {seen} to {count}"
    seen = count
"""
ROUNDS = 15


def transact(name, mode):
    db = sqlite3.connect(name, timeout=60, isolation_level=None)
    assert db.execute(f"pragma journal_mode={mode}").fetchone()[0] == mode
    db.execute("create table account(id integer primary key, balance integer, note text)")
    reader = subprocess.Popen([sys.executable, "-c", READER, name, str(2 * ROUNDS)])
    for i in range(ROUNDS):
        db.execute("begin")
        db.execute("insert into account(balance, note) values(?, ?)", (i, "x" * 3000))
        db.execute("insert into account(balance, note) values(?, ?)", (-i, os.urandom(500)))
        db.execute("commit")
        if i % 5 == 4:
            db.execute("begin")
            db.execute("update account set balance = 1")
            db.execute("rollback")
    assert reader.wait(60) == 0, mode
    db.execute("delete from account where id % 3 = 0 and balance = 0")
    db.execute("vacuum")
    db.close()
    assert mode in ("truncate", "persist") or not os.path.exists(name + "-journal")


def check(name, count=2 * ROUNDS):
    db = sqlite3.connect(name)
    assert db.execute("pragma integrity_check").fetchone()[0] == "ok"
    assert db.execute("select sum(balance) from account").fetchone()[0] == 0
    db.close()


MODES = ["delete", "truncate", "persist", "wal"]
if sys.argv[1] == "work":
    for mode in MODES:
        transact(f"{mode}.db", mode)
        check(f"{mode}.db")
    # What a program left that died in the middle is rolled back by the next one.
    script = ("import os, sqlite3; db = sqlite3.connect('delete.db', isolation_level=None); db.execute('pragma cache_size=1');"
              "db.execute('begin'); db.execute('update account set balance = 5, note = hex(randomblob(3000))'); os._exit(0)")
    subprocess.run([sys.executable, "-c", script], check=True)
    check("delete.db")
else:
    for mode in MODES:
        check(f"{mode}.db")
