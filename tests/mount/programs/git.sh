# A repository lives on the mount: commits, branches, merges, packing, clones in both directions.
# needs: git
export GIT_CONFIG_GLOBAL=$SCRATCH/gitconfig
git config --global user.name T; git config --global user.email t@example.org; git config --global init.defaultBranch main
work() {
  git init -q repo; cd repo
  mkdir -p src/deep/er
  for i in $(seq 20); do seq "$i" $((i * 50)) >"src/file$i"; done
  printf '#!/bin/sh\necho run\n' >tool; chmod +x tool; ln -s src/file1 link
  git add .; git commit -qm first
  git checkout -qb side; seq 500 >src/file3; mkdir src/new; echo x >src/new/file; git add .; git commit -qm side
  git checkout -q main; test ! -e src/new; echo more >>src/file7; git commit -qam main
  git merge -q --no-edit side; git mv src/file9 src/deep/er/nine; git commit -qm moved; git tag -a v1 -m v1
  git stash list; echo '# more' >>tool; git stash -q; test "$(git status --porcelain)" = ""; git stash pop -q
  git commit -qam tool; git rebase -q --force-rebase HEAD~1
  git gc -q --aggressive --prune=now; git fsck --strict --full
  test "$(git status --porcelain)" = ""; test "$(git log --oneline | wc -l)" -ge 5
  cd ..
  git clone -q repo clone; git -C clone fsck --full
  git clone -q --bare repo bare.git; git -C clone push -q ../bare.git main:pushed
  git clone -q repo "$SCRATCH/local"; diff -r repo/src "$SCRATCH/local/src"
  git -C repo worktree add -q ../tree side; test -e tree/src/new/file
}
see() {
  git -C repo fsck --full; git -C clone fsck --full; git -C bare.git fsck --full
  test "$(git -C clone status --porcelain)" = ""
  git clone -q clone again; diff -r -x .git clone again; ./again/tool | grep -qx run
}
"$1"
