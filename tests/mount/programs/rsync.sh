# Copies that keep everything; a second run finds nothing to do, on this host and on another.
# needs: rsync
work() {
  mkdir -p "$SCRATCH/from/sub/deep" "$SCRATCH/from/bare"
  for i in {1..40}; do head -c $((i * 4001)) /dev/urandom >"$SCRATCH/from/sub/f$i"; done
  ln -s sub/f1 "$SCRATCH/from/link"; chmod 700 "$SCRATCH/from/sub/f2"; touch -d @1000000000 "$SCRATCH/from/sub/f3"
  rsync -a "$SCRATCH/from/" to/
  test "$(rsync -ai "$SCRATCH/from/" to/)" = ""
  echo changed >>"$SCRATCH/from/sub/f4"; rm "$SCRATCH/from/sub/f5"; echo new >"$SCRATCH/from/sub/deep/new"
  test "$(rsync -ai --delete "$SCRATCH/from/" to/ | grep -c -e '^>f' -e deleting)" = 3
  echo longer >>"$SCRATCH/from/sub/f6"; rsync -a --inplace --no-whole-file "$SCRATCH/from/" to/
  echo tail >>"$SCRATCH/from/sub/f7"; rsync -a --append-verify "$SCRATCH/from/" to/
  test "$(rsync -aic "$SCRATCH/from/" to/)" = ""
  rsync -a to/ within/; test "$(rsync -ai to/ within/)" = ""
  rsync -a to/ "$SCRATCH/back/"; diff -r "$SCRATCH/from" "$SCRATCH/back"
}
# Times of directories that nobody set are each mount's own (-O).
see() {
  test "$(rsync -ainO "$SCRATCH/from/" to/)" = ""
  test "$(rsync -aincO to/ within/)" = ""
}
"$1"
