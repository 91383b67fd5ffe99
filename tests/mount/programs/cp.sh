# The file utilities that everybody uses.
# needs: setfattr, truncate
work() {
  mkdir -p tree/a/b tree/none; seq 1000 >tree/a/f; : >tree/a/nothing; chmod 600 tree/a/f; ln -s f tree/a/link
  touch -d '2010-10-10 10:10:10.5' tree/a/f tree/a/b; setfattr -n user.k -v v tree/a/f; truncate -s 3M tree/sparse
  printf x | dd of=tree/sparse bs=1 seek=2000000 conv=notrunc status=none
  cp -a tree copy; diff -r --no-dereference tree copy
  for file in a/f a/b; do test "$(stat -c '%a %Y' tree/$file)" = "$(stat -c '%a %Y' copy/$file)"; done
  test "$(getfattr --only-values -n user.k copy/a/f)" = v
  cp -a tree "$SCRATCH/out"; diff -r --no-dereference tree "$SCRATCH/out"; mv "$SCRATCH/out" in; diff -r --no-dereference tree in
  cp -r --sparse=always tree/sparse holes; cmp holes tree/sparse; cp --reflink=auto tree/a/f clone; cmp clone tree/a/f
  install -D -m 751 tree/a/f bin/sub/installed; test "$(stat -c %a bin/sub/installed)" = 751
  mv copy moved; test "$(find moved -type f | wc -l)" = 3; test "$(du -s --apparent-size -B1M moved | cut -f1)" -ge 3
  split -b 500 tree/a/f part.; cat part.* | cmp - tree/a/f; sort -R tree/a/f | sort -n -o sorted; cmp sorted tree/a/f
  tee -a log <tree/a/f >/dev/null; tee -a log <tree/a/f | cmp - tree/a/f; test "$(wc -l <log)" = 2000
  mktemp -d ./tmp.XXXX >/dev/null; mktemp ./tmp.XXXX >/dev/null; shred -u clone; test ! -e clone
  (set -C; ! echo x >log) 2>/dev/null; echo one >mv1; echo two >mv2; mv -b mv1 mv2; test "$(cat mv2 mv2~)" = "$(printf 'one\ntwo')"
  rm -rf moved; test ! -e moved
}
see() { diff -r --no-dereference tree in; test "$(stat -c '%a %Y' tree/a/f)" = "$(stat -c '%a %Y' in/a/f)"; }
"$1"
