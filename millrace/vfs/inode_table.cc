#include "millrace/vfs/inode_table.h"

#include <algorithm>

namespace millrace::vfs {

void Inode::Learn(Metadata state) {
  if (state.etag != told.etag) ++content;
  if (!state.complete && state.etag == told.etag) {
    state.attributes = told.attributes;
    state.complete = told.complete;
  }
  // Until a store tells the time of a new version, it was guessed: the same bytes keep the time that was told first.
  if (kind != Kind::kDirectory && state.etag == told.etag && !state.etag.empty() &&
      std::chrono::abs(state.modified - told.modified) < std::chrono::seconds(2)) {
    state.modified = told.modified;
  }
  told = std::move(state);
}

void Inode::LearnMove(Metadata state) {
  ++moves;
  if (pages_etag == told.etag) pages_etag = state.etag;
  told = std::move(state);
}

InodeTable::InodeTable(std::string prefix) : prefix_(std::move(prefix)) {
  auto root = std::make_shared<Inode>(kRootInode, Kind::kDirectory);
  root->lookups_ = 1;  // never taken back
  root->linked_ = true;
  inodes_.emplace(kRootInode, std::move(root));
}

Result<InodePtr> InodeTable::Find(InodeId id) const {
  MutexLock lock(mutex_);
  auto found = inodes_.find(id);
  if (found == inodes_.end()) return Fail(Code::kStale, "inode {} is not in use", id);
  return found->second;
}

Result<InodePtr> InodeTable::FindDirectory(InodeId id) const {
  InodePtr inode = MR_TRY(Find(id));
  if (inode->kind != Kind::kDirectory) return Fail(Code::kNotDirectory, "inode {} is a file", id);
  return inode;
}

InodePtr InodeTable::Child(InodeId parent, std::string_view name) const {
  auto found = names_.find(NameLess::View(parent, name));
  return found == names_.end() ? nullptr : found->second;
}

InodePtr InodeTable::FindChild(InodeId parent, std::string_view name) const {
  MutexLock lock(mutex_);
  return Child(parent, name);
}

InodePtr InodeTable::Acquire(InodeId parent, std::string_view name, Kind kind) {
  MutexLock lock(mutex_);
  InodePtr inode = Child(parent, name);
  if (inode && inode->kind != kind) {
    Detach(*inode);
    inode = nullptr;
  }
  if (!inode) {
    inode = std::make_shared<Inode>(next_++, kind);
    inodes_.emplace(inode->id, inode);
    Attach(*inode, parent, name);
  }
  ++inode->lookups_;
  return inode;
}

void InodeTable::Hold(Inode& inode) {
  MutexLock lock(mutex_);
  ++inode.lookups_;
}

void InodeTable::Forget(InodeId id, std::uint64_t lookups) {
  MutexLock lock(mutex_);
  auto found = inodes_.find(id);
  if (found == inodes_.end()) return;
  found->second->lookups_ -= std::min(lookups, found->second->lookups_);
  EraseUnused(id);
}

void InodeTable::EraseUnused(InodeId id) {
  auto found = inodes_.find(id);
  if (found == inodes_.end() || id == kRootInode) return;
  const InodePtr inode = found->second;
  if (inode->lookups_ > 0 || inode->children_ > 0) return;
  inodes_.erase(found);
  Detach(*inode);
}

void InodeTable::Attach(Inode& inode, InodeId parent, std::string_view name) {
  inode.parent_ = parent;
  inode.name_ = name;
  inode.linked_ = true;
  names_.emplace(Name(parent, name), inodes_.at(inode.id));
  if (auto above = inodes_.find(parent); above != inodes_.end()) ++above->second->children_;
}

Result<std::string> InodeTable::Path(const Inode& inode) const {
  std::vector<const Inode*> chain;
  for (const Inode* at = &inode; at->id != kRootInode;) {
    auto parent = inodes_.find(at->parent_);
    if (!at->linked_ || parent == inodes_.end()) return Fail(Code::kStale, "{} was removed", inode.name_);
    chain.push_back(at);
    at = parent->second.get();
  }
  std::string path = prefix_;
  for (auto at = chain.rbegin(); at != chain.rend(); ++at) {
    path += (*at)->name_;
    path += '/';
  }
  if (!path.empty()) path.pop_back();
  return path;
}

Result<std::string> InodeTable::PathOf(const Inode& inode) const {
  MutexLock lock(mutex_);
  return Path(inode);
}

Result<std::string> InodeTable::DirectoryKeyOf(const Inode& inode) const {
  if (inode.id == kRootInode) return prefix_;
  return MR_TRY(PathOf(inode)) + "/";
}

bool InodeTable::IsLinked(const Inode& inode) const {
  MutexLock lock(mutex_);
  return inode.linked_;
}

void InodeTable::Detach(Inode& inode) {
  if (!inode.linked_ || inode.id == kRootInode) return;
  names_.erase(Name(inode.parent_, inode.name_));
  inode.linked_ = false;
  inode.local_ = false;
  auto above = inodes_.find(inode.parent_);
  if (above == inodes_.end()) return;
  --above->second->children_;
  EraseUnused(inode.parent_);
}

void InodeTable::Unlink(Inode& inode) {
  MutexLock lock(mutex_);
  Detach(inode);
}

void InodeTable::Move(Inode& inode, InodeId new_parent, std::string_view new_name) {
  MutexLock lock(mutex_);
  if (!inodes_.contains(inode.id)) return;  // forgotten meanwhile
  if (InodePtr replaced = Child(new_parent, new_name)) Detach(*replaced);
  const bool local = inode.local_;
  Detach(inode);
  Attach(inode, new_parent, new_name);
  inode.local_ = local;
}

void InodeTable::SetLocal(Inode& inode, bool local) {
  MutexLock lock(mutex_);
  inode.local_ = local && inode.linked_;
}

bool InodeTable::IsLocal(const Inode& inode) const {
  MutexLock lock(mutex_);
  return inode.local_;
}

std::vector<InodeTable::LocalChild> InodeTable::LocalChildren(InodeId parent) const {
  MutexLock lock(mutex_);
  std::vector<LocalChild> children;
  for (auto at = names_.lower_bound(NameLess::View(parent, "")); at != names_.end() && at->first.first == parent;
       ++at) {
    if (at->second->local_) children.push_back({at->first.second, at->second->kind});
  }
  return children;
}

std::vector<InodePtr> InodeTable::All() const {
  MutexLock lock(mutex_);
  std::vector<InodePtr> all;
  for (const auto& [id, inode] : inodes_) all.push_back(inode);
  return all;
}

}  // namespace millrace::vfs
