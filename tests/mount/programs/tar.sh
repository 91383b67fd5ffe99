# Archives with modes, times of nanoseconds, links, owners and extended attributes, in and out.
# needs: tar, setfattr
tree() {
  mkdir -p tree/a/b tree/empty
  for i in $(seq 60); do head -c $((i * 997)) /dev/urandom >"tree/a/f$i"; done
  : >tree/a/nothing; printf '#!/bin/sh\n' >tree/run; chmod 755 tree/run; chmod 600 tree/a/f1; chmod 444 tree/a/f2
  ln -s a/f3 tree/link; ln -s nowhere tree/dangling
  setfattr -n user.colour -v blue tree/a/f4
  touch -d '2001-02-03 04:05:06.123456789' tree/a/f5 tree/a/b; touch -d '1990-01-01' tree/empty
  chmod 1777 tree/empty; chmod 750 tree/a/b
}
work() {
  (cd "$SCRATCH" && tree && tar --xattrs -cf in.tar tree && tar -czf in.tgz tree)
  tar --xattrs -xpf "$SCRATCH/in.tar"
  tar --diff --xattrs -f "$SCRATCH/in.tar"
  tar --xattrs -cf out.tar tree
  (cd "$SCRATCH" && mkdir back && tar --xattrs -xpf "$OLDPWD/out.tar" -C back && diff -r --no-dereference tree back/tree)
  mkdir gz; tar -xpzf "$SCRATCH/in.tgz" -C gz; diff -r --no-dereference tree gz/tree
  tar -rf out.tar -C "$SCRATCH" in.tgz; tar -tf out.tar | grep -qx in.tgz
}
see() {
  tar --diff --xattrs -f "$SCRATCH/in.tar"
  test "$(getfattr --only-values -n user.colour tree/a/f4)" = blue
}
"$1"
