# How editors save: aside and renamed, in place, with backups and swap files.
# needs: vim, ed, sed, perl
work() {
  seq 100 >text; cp text expected; chmod 640 text
  for style in yes no auto; do
    vim -es -u NONE -c "set swapfile backupskip= backup writebackup backupcopy=$style" -c '$s/$/!/' -c wq text; sed -i '$s/$/!/' expected
    cmp text expected; test -e text~; test "$(stat -c %a text)" = 640
  done
  vim -es -u NONE -c 'set undofile undodir=.' -c 'normal ggdd' -c wq text; sed -i 1d expected; cmp text expected
  printf '1d\n$a\nlast\n.\nw\nq\n' | ed -s text; sed -i -e 1d -e '$a last' expected; cmp text expected
  sed -i.bak 's/5/five/g' text; perl -pi.orig -e 's/7/seven/' text; test "$(grep -c -e five -e seven text)" -gt 10
  # Backup, write aside, sync, rename: what most others do.
  cp text text.bak2; python3 - <<'END'
import os
for i in range(20):
    with open("text.new", "w") as f:
        f.write(f"version {i}\n")
        f.flush()
        os.fsync(f.fileno())
    os.rename("text.new", "text")
    folder = os.open(".", os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)
    assert open("text").read() == f"version {i}\n"
END
  ! ls -A | grep -q -e '\.swp$' -e '\.new$'
}
see() { test "$(cat text)" = "version 19"; vim -es -u NONE -c 'normal Athere' -c wq text; test "$(cat text)" = "version 19there"; }
"$1"
