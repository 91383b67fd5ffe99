# Archives that are written with seeks, and updated in place.
# needs: zip, unzip
work() {
  mkdir -p tree/sub; for i in $(seq 30); do seq $((i * 100)) >"tree/sub/f$i"; done
  zip -qr all.zip tree; unzip -tq all.zip
  echo more >tree/more; zip -qu all.zip tree/more; zip -qd all.zip tree/sub/f1; unzip -tq all.zip
  unzip -q all.zip -d out; rm tree/sub/f1; diff -r tree out/tree
  gzip -k tree/sub/f2; gzip -t tree/sub/f2.gz; gunzip -c tree/sub/f2.gz | cmp - tree/sub/f2
  python3 -m zipfile -c py.zip tree/; python3 -m zipfile -t py.zip
}
see() { unzip -tq all.zip; unzip -tq py.zip; }
"$1"
