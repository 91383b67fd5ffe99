#include "millrace/vfs/metadata/inode_table.h"

#include <algorithm>
#include <functional>
#include <limits>

namespace millrace::vfs {
namespace {

/// A generation and a count of lookups end here: see Record.
constexpr std::uint32_t kMax = std::numeric_limits<std::uint32_t>::max();
/// The largest slot that is restored: records of 80 bytes, so a hundred gigabytes. Only a damaged log has a larger one.
constexpr std::uint32_t kMaxRestored = 1U << 30;

std::uint64_t HashChild(std::uint32_t parent, std::string_view name) {
  return std::hash<std::string_view>()(name) ^ (parent * 0x9E3779B97F4A7C15ULL);
}

}  // namespace

void Inode::SetReported(Metadata state) {
  if (state.etag != reported.etag) ++content;
  if (!state.complete && state.etag == reported.etag) {
    state.attributes = reported.attributes;
    state.complete = reported.complete;
  }
  // The time of a version that this tree has published was a guess. The same version keeps the time reported first.
  if (kind != NodeKind::kDirectory && state.etag == reported.etag && !state.etag.empty() &&
      std::chrono::abs(state.modified - reported.modified) < std::chrono::seconds(2)) {
    state.modified = reported.modified;
  }
  reported = std::move(state);
}

void Inode::SetReportedAfterMove(Metadata state) {
  ++moves;
  if (pages_etag == reported.etag) pages_etag = state.etag;
  reported = std::move(state);
}

InodeTable::InodeTable(std::string prefix, SessionLog* log) : prefix_(std::move(prefix)), log_(log) {
  records_.resize(kRoot);
  Record& root = records_[Add(NodeKind::kDirectory)];
  root.lookups = 1;  // Forget() does not take it back
  root.linked = true;
}

// --- The log of a session ---

void InodeTable::LogInode(Slot slot) {
  if (log_ == nullptr) return;
  const Record& record = records_[slot];
  log_->PutInode(IdOf(slot), {.parent = record.linked ? IdOf(record.parent) : 0,
                              .name = std::string(record.name.view()),
                              .kind = record.kind,
                              .lookups = record.lookups});
}

void InodeTable::LogLookups(Slot slot) {
  if (log_ != nullptr) log_->PutLookups(IdOf(slot), records_[slot].lookups);
}

Status InodeTable::Restore(const SessionState& state) {
  MutexLock lock(mutex_);
  Slot most = kRoot;
  for (const auto& [id, inode] : state.inodes) most = std::max(most, static_cast<Slot>(id));
  if (most > kMaxRestored) return Fail(Code::kCorrupt, "an inode has an impossible number");
  records_.resize(static_cast<std::size_t>(most) + 1);
  for (const auto& [id, inode] : state.inodes) {
    const auto slot = static_cast<Slot>(id);
    if (slot <= kRoot || records_[slot].used) return Fail(Code::kCorrupt, "two inodes have one number");
    Record& record = records_[slot];
    record.generation = static_cast<std::uint32_t>(id >> 32);
    record.lookups = inode.lookups;
    record.kind = inode.kind;
    record.name = SmallBytes(inode.name);
    record.used = true;
  }
  for (const auto& [id, inode] : state.inodes) {
    if (inode.parent == 0) continue;
    const Slot above = SlotOf(inode.parent);
    if (above == kNone || Child(above, inode.name) != kNone) {
      return Fail(Code::kCorrupt, "the inode of {} has no place", inode.name);
    }
    Attach(static_cast<Slot>(id), above, inode.name);
  }
  for (Slot slot = most; slot > kRoot; --slot) {
    Record& record = records_[slot];
    if (record.used) continue;
    record.generation = state.last_generation + 1;
    record.parent = free_;
    free_ = slot;
  }
  return {};
}

void InodeTable::RemoveUnused() {
  RemovedInodes removed;
  MutexLock lock(mutex_);
  for (Slot slot = kRoot + 1; slot < records_.size(); ++slot) RemoveUnused(slot, removed);
}

// --- Records and the inodes made of them ---

InodeId InodeTable::IdOf(Slot slot) const { return static_cast<InodeId>(records_[slot].generation) << 32 | slot; }

InodeTable::Slot InodeTable::SlotOf(InodeId id) const {
  const Slot slot = static_cast<Slot>(id);
  return slot < records_.size() && records_[slot].used && IdOf(slot) == id ? slot : kNone;
}

auto InodeTable::HashOf() const {
  return [this](Slot slot)
             MR_NO_THREAD_SAFETY_ANALYSIS { return HashChild(records_[slot].parent, records_[slot].name.view()); };
}

InodeTable::Slot InodeTable::Add(NodeKind kind) {
  Slot slot = free_;
  if (slot == kNone) {
    slot = static_cast<Slot>(records_.size());
    records_.emplace_back();
  } else {
    free_ = records_[slot].parent;
  }
  Record& record = records_[slot];
  record.parent = kNone;
  record.kind = kind;
  record.used = true;
  return slot;
}

InodePtr InodeTable::Use(Slot slot) {
  InodeInUse& used = in_use_[slot];
  if (InodePtr inode = used.handle.lock()) return inode;
  if (!used.inode) {
    const Record& record = records_[slot];
    auto changed = changed_.find(slot);
    used.inode = std::make_unique<Inode>(IdOf(slot), record.kind, record.reported.Unpack(), record.pages,
                                         changed == changed_.end() ? std::nullopt : std::optional(changed->second));
  }
  InodePtr inode(used.inode.get(), [this, slot](Inode*) { Release(slot); });
  used.handle = inode;
  ++used.handles;
  return inode;
}

/// Called when a handle has expired. Other threads may have made new handles since.
void InodeTable::Release(Slot slot) {
  RemovedInodes removed;
  MutexLock lock(mutex_);
  auto used = in_use_.find(slot);
  if (--used->second.handles > 0) return;
  if (Fold(slot, *used->second.inode)) {
    removed.push_back(std::move(used->second.inode));
    in_use_.erase(used);
  }
  RemoveUnused(slot, removed);
}

bool InodeTable::Fold(Slot slot, Inode& inode) {
  if (!inode.mutex.try_lock())
    return false;  // has no handles, so nobody holds the mutex; locking shows other threads' changes
  const bool idle = inode.idle();
  if (idle) {
    Record& record = records_[slot];
    record.reported = PackedMetadata(inode.reported);
    record.pages = !inode.reported.etag.empty() && inode.pages_etag == inode.reported.etag;
    if (inode.changed) changed_[slot] = *inode.changed;
    if (!inode.changed && inode.kind == NodeKind::kDirectory) changed_.erase(slot);
  }
  inode.mutex.unlock();
  return idle;
}

void InodeTable::RemoveUnused(Slot slot, RemovedInodes& removed) {
  Record& record = records_[slot];
  if (slot == kRoot || !record.used || record.lookups > 0 || record.children > 0) return;
  if (auto used = in_use_.find(slot); used != in_use_.end()) {
    if (used->second.handles > 0) return;
    removed.push_back(std::move(used->second.inode));
    in_use_.erase(used);
  }
  if (log_ != nullptr) log_->RemoveInode(IdOf(slot));
  record.used = false;
  Detach(slot, removed);
  changed_.erase(slot);
  const std::uint32_t generation = record.generation;
  record = Record();
  record.generation = generation + 1;
  if (generation == kMax) return;  // all numbers of the slot are used
  record.parent = free_;
  free_ = slot;
}

// --- Names ---

InodeTable::Slot InodeTable::Child(Slot parent, std::string_view name) const {
  return names_.Find(HashChild(parent, name), [&](Slot slot) MR_NO_THREAD_SAFETY_ANALYSIS {
    return records_[slot].parent == parent && records_[slot].name.view() == name;
  });
}

void InodeTable::Attach(Slot slot, Slot parent, std::string_view name) {
  Record& record = records_[slot];
  record.parent = parent;
  record.name = SmallBytes(name);
  record.linked = true;
  names_.Insert(slot, HashOf());
  ++records_[parent].children;
}

void InodeTable::Detach(Slot slot, RemovedInodes& removed) {
  Record& record = records_[slot];
  if (!record.linked || slot == kRoot) return;
  SetLocal(slot, false);
  names_.Erase(slot, HashOf());
  record.linked = false;
  --records_[record.parent].children;
  RemoveUnused(record.parent, removed);
}

void InodeTable::SetLocal(Slot slot, bool local) {
  Record& record = records_[slot];
  record.local = local && record.linked;
  const auto name = std::pair(record.parent, slot);
  record.local ? void(local_.insert(name)) : void(local_.erase(name));
}

Result<std::string> InodeTable::Path(Slot slot) const {
  std::vector<std::string_view> names;
  for (; slot != kRoot; slot = records_[slot].parent) {
    const Record& record = records_[slot];
    if (!record.linked) return Fail(Code::kStale, "{} was removed", record.name.view());
    names.push_back(record.name.view());
  }
  std::string path = prefix_;
  for (auto name = names.rbegin(); name != names.rend(); ++name) {
    path += *name;
    path += '/';
  }
  if (!path.empty()) path.pop_back();
  return path;
}

// --- For everybody ---

Result<InodePtr> InodeTable::Find(InodeId id) {
  MutexLock lock(mutex_);
  const Slot slot = SlotOf(id);
  if (slot == kNone) return Fail(Code::kStale, "inode {} is not in use", id);
  return Use(slot);
}

Result<InodePtr> InodeTable::FindDirectory(InodeId id) {
  InodePtr inode = MR_TRY(Find(id));
  if (inode->kind != NodeKind::kDirectory) return Fail(Code::kNotDirectory, "inode {} is a file", id);
  return inode;
}

InodePtr InodeTable::FindChild(InodeId parent, std::string_view name) {
  MutexLock lock(mutex_);
  const Slot child = Child(SlotOf(parent), name);
  return child == kNone ? nullptr : Use(child);
}

InodeId InodeTable::FindChildId(InodeId parent, std::string_view name) const {
  MutexLock lock(mutex_);
  const Slot child = Child(SlotOf(parent), name);
  return child == kNone ? 0 : IdOf(child);
}

InodePtr InodeTable::Acquire(InodeId parent, std::string_view name, NodeKind kind) {
  RemovedInodes removed;
  MutexLock lock(mutex_);
  const Slot above = SlotOf(parent);
  Slot slot = Child(above, name);
  if (slot != kNone && records_[slot].kind != kind) {
    ++records_[above].children;  // keeps the parent while its child is detached
    Detach(slot, removed);
    LogInode(slot);
    --records_[above].children;
    slot = kNone;
  }
  const bool added = slot == kNone;
  if (added) {
    slot = Add(kind);
    if (above != kNone) Attach(slot, above, name);
  }
  Record& record = records_[slot];
  if (record.lookups < kMax) ++record.lookups;
  added ? LogInode(slot) : LogLookups(slot);
  return Use(slot);
}

void InodeTable::Hold(const Inode& inode) {
  MutexLock lock(mutex_);
  const Slot slot = SlotOf(inode.id);
  Record& record = records_[slot];
  if (record.lookups < kMax) ++record.lookups;
  LogLookups(slot);
}

void InodeTable::Forget(InodeId id, std::uint64_t lookups) {
  RemovedInodes removed;
  MutexLock lock(mutex_);
  const Slot slot = SlotOf(id);
  if (slot == kNone || slot == kRoot) return;
  Record& record = records_[slot];
  if (record.lookups < kMax)
    record.lookups -= static_cast<std::uint32_t>(std::min<std::uint64_t>(lookups, record.lookups));
  LogLookups(slot);
  RemoveUnused(slot, removed);
}

Result<std::string> InodeTable::PathOf(const Inode& inode) const {
  MutexLock lock(mutex_);
  return Path(SlotOf(inode.id));
}

Result<std::string> InodeTable::DirectoryKeyOf(const Inode& inode) const {
  if (inode.id == kRootInode) return prefix_;
  return MR_TRY(PathOf(inode)) + "/";
}

bool InodeTable::IsLinked(const Inode& inode) const {
  MutexLock lock(mutex_);
  return records_[SlotOf(inode.id)].linked;
}

void InodeTable::Unlink(const Inode& inode) {
  RemovedInodes removed;
  MutexLock lock(mutex_);
  Detach(SlotOf(inode.id), removed);
  LogInode(SlotOf(inode.id));
}

void InodeTable::Move(const Inode& inode, InodeId new_parent, std::string_view new_name) {
  RemovedInodes removed;
  MutexLock lock(mutex_);
  const Slot slot = SlotOf(inode.id), above = SlotOf(new_parent);
  const bool local = records_[slot].local;
  if (above != kNone) ++records_[above].children;  // keeps the parent while its children are detached
  if (const Slot replaced = Child(above, new_name); replaced != kNone && replaced != slot) {
    Detach(replaced, removed);
    LogInode(replaced);
  }
  Detach(slot, removed);
  if (above != kNone) {
    Attach(slot, above, new_name);
    LogInode(slot);
    SetLocal(slot, local);
    --records_[above].children;
  }
}

void InodeTable::SetLocal(const Inode& inode, bool local) {
  MutexLock lock(mutex_);
  SetLocal(SlotOf(inode.id), local);
}

bool InodeTable::IsLocal(const Inode& inode) const {
  MutexLock lock(mutex_);
  return records_[SlotOf(inode.id)].local;
}

std::vector<InodeTable::LocalChild> InodeTable::LocalChildren(InodeId parent) const {
  std::vector<LocalChild> children;
  {
    MutexLock lock(mutex_);
    const Slot above = SlotOf(parent);
    for (auto at = local_.lower_bound({above, 0}); at != local_.end() && at->first == above; ++at) {
      const Record& record = records_[at->second];
      children.push_back({std::string(record.name.view()), record.kind});
    }
  }
  std::ranges::sort(children, {}, &LocalChild::name);
  return children;
}

std::vector<InodePtr> InodeTable::InUse() {
  std::vector<InodePtr> all;
  MutexLock lock(mutex_);
  std::vector<Slot> slots;
  for (const auto& [slot, used] : in_use_) slots.push_back(slot);
  for (Slot slot : slots) all.push_back(Use(slot));
  return all;
}

std::vector<InodeTable::FileBelow> InodeTable::FilesBelow(std::string_view directory) const {
  std::vector<FileBelow> below;
  MutexLock lock(mutex_);
  for (Slot slot = kRoot; slot < records_.size(); ++slot) {
    const Record& record = records_[slot];
    if (!record.linked || record.kind == NodeKind::kDirectory) continue;
    auto path = Path(slot);
    if (path && path->starts_with(directory)) below.push_back({IdOf(slot), path->substr(directory.size())});
  }
  return below;
}

}  // namespace millrace::vfs
