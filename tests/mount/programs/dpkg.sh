# Packages are built and unpacked.
# needs: dpkg-deb
work() {
  mkdir -p p/DEBIAN p/usr/bin p/usr/share/doc/p
  printf 'Package: p\nVersion: 1\nArchitecture: all\nMaintainer: T <t@example.org>\nDescription: p\n' >p/DEBIAN/control
  printf '#!/bin/sh\necho packaged\n' >p/usr/bin/p; chmod 755 p/usr/bin/p p/DEBIAN; ln -s ../../../bin/p p/usr/share/doc/p/link
  head -c 3000000 /dev/urandom >p/usr/share/doc/p/blob
  dpkg-deb -b --root-owner-group p p.deb; dpkg-deb -x p.deb out; dpkg-deb -e p.deb control
  diff -r p/usr out/usr; ./out/usr/bin/p | grep -qx packaged; test "$(dpkg-deb -f p.deb Version)" = 1
}
see() { dpkg-deb -x p.deb again; diff -r out again; }
"$1"
