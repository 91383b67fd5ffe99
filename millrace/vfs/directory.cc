// Open directories: pages of a listing, with the inodes that only this tree knows in front.
#include "millrace/vfs/directory.h"

#include <algorithm>

#include "millrace/vfs/core/tree_core.h"

namespace millrace::vfs {
namespace {

/// A cookie is a page's number and, in its lowest 16 bits, an index into the page. S3's pages have 1,000 names at most.
constexpr int kIndexBits = 16;

void RemoveNames(std::vector<ListedName>& page, const std::set<std::string>& names) {
  std::erase_if(page, [&names](const ListedName& listed) { return names.contains(listed.name); });
}

}  // namespace

Directory::Directory(std::shared_ptr<TreeCore> core, InodePtr inode)
    : core_(std::move(core)), inode_(std::move(inode)) {}

Status Directory::Read(std::uint64_t cookie, const Visit& visit, object::Call call) {
  return ReadFrom(cookie, call, [&](const ListedName& listed, DirectoryEntry& entry) {
    entry.entry.attributes.inode = core_->table.FindChildId(inode_->id, listed.name);
    return visit(entry);
  });
}

Status Directory::ReadPlus(std::uint64_t cookie, const Visit& visit, object::Call call) {
  return ReadFrom(cookie, call, [&](const ListedName& listed, DirectoryEntry& entry) {
    InodePtr inode = core_->table.Acquire(inode_->id, listed.name, entry.kind);
    entry.entry = core_->Report(*inode, listed.metadata);
    const bool seen = visit(entry);
    if (!seen) core_->table.Forget(inode->id, 1);
    return seen;
  });
}

template <class Emit>
Status Directory::ReadFrom(std::uint64_t cookie, const object::Call& call, const Emit& emit) {
  MutexLock lock(mutex_);
  if (cookie == 0) Restart();
  std::uint64_t number = cookie >> kIndexBits, index = cookie & ((1u << kIndexBits) - 1);
  bool visited = false;
  while ((!visited || HasPage(number)) && MR_TRY(LoadPage(number, call))) {
    for (; index < page_.size(); ++index) {
      const ListedName& listed = page_[index];
      DirectoryEntry entry{.name = listed.name,
                           .kind = KindOf(listed.metadata),
                           .next_cookie = (number << kIndexBits) + index + 1,
                           .entry = {}};
      if (!emit(listed, entry)) return {};
      visited = true;
    }
    ++number;
    index = 0;
  }
  return {};
}

InodeId Directory::inode() const { return inode_->id; }

void Directory::LogPages(std::uint64_t number) {
  MutexLock lock(mutex_);
  logged_ = number;
}

/// Continues the directory of another process: its pages begin where they began there.
void Directory::Restore(std::uint64_t number, const SavedDirectory& saved) {
  MutexLock lock(mutex_);
  begins_.clear();
  for (const SavedPage& page : saved.begins) {
    Listing::Position& begin = begins_.emplace_back();
    begin.start_after = page.start_after;
    for (const SavedPage::HeldFile& held : page.held) {
      begin.held.push_back(
          {held.name,
           Metadata{.state = Metadata::State::kFile, .size = held.size, .modified = held.modified, .etag = held.etag}});
    }
  }
  logged_ = number;
}

void Directory::AddPage(Listing::Position begin) {
  if (logged_) {
    SavedPage saved{.start_after = begin.start_after, .held = {}};
    for (const ListedName& held : begin.held) {
      saved.held.push_back({.name = held.name,
                            .etag = held.metadata.etag,
                            .size = held.metadata.size,
                            .modified = held.metadata.modified});
    }
    core_->options.session->PutPage(*logged_, begins_.size(), saved);
  }
  begins_.push_back(std::move(begin));
}

void Directory::Restart() {
  begins_ = {{}};
  if (logged_) core_->options.session->PutPage(*logged_, 0, {});
  current_ = kNoPage;
  listing_.reset();
  stream_.reset();
  local_.clear();
}

/// True when the page after the current one can be loaded without waiting.
bool Directory::HasPage(std::uint64_t number) { return number + 1 == begins_.size() && stream_ && stream_->ready(); }

/// Makes page `number` the current one. Returns false if the directory ends before it.
Result<bool> Directory::LoadPage(std::uint64_t number, const object::Call& call) {
  if (current_ == number) return true;
  if (number >= begins_.size()) return false;
  const std::string key = MR_TRY(core_->table.DirectoryKeyOf(*inode_));
  if (!listing_ || number == 0 || current_ + 1 != number) {
    listing_.emplace(core_->store, core_->metadata, core_->clock, key, begins_[number]);
    stream_.reset();
  }
  // A page that is read again ends where it ended before.
  const bool again = number + 1 < begins_.size();
  if (number == 0 && !again) stream_ = core_->walk.Take(key);
  if (!stream_ || again) {
    stream_ = std::make_shared<PageStream>(core_->store, core_->clock, key, listing_->position().start_after,
                                           again ? begins_[number + 1].start_after : "",
                                           PageStream::Options{.parallel = core_->options.parallel_listing});
  }
  // Before the request: a file that is published meanwhile may be missing in the store's answer.
  std::vector<InodeTable::LocalChild> local;
  if (number == 0) local = core_->table.LocalChildren(inode_->id);
  std::vector<ListedName> page = MR_TRY(NextNames(again, call));
  if (again) stream_.reset();
  if (!again) core_->walk.OnPage(key, page, number == 0);
  MR_TRY(core_->attributes.Complete(key, page, call));
  page_ = std::move(page);
  if (number == 0) AddLocalNames(key, std::move(local));
  if (number > 0) {
    RemoveNames(page_, local_);
  }
  if (!listing_->done() && begins_.size() == number + 1) AddPage(listing_->position());
  current_ = number;
  return true;
}

/// Returns the names of the stream's next page, or, if `all`, of all its remaining pages.
Result<std::vector<ListedName>> Directory::NextNames(bool all, const object::Call& call) {
  std::vector<ListedName> names;
  for (bool last = false; !last;) {
    PageStream::Page next = MR_TRY(stream_->Next(call));
    last = next.last || !all;
    next.page.continuation = next.last && !all ? "" : "more";
    std::ranges::move(MR_TRY(listing_->Accept(std::move(next.page), next.as_of)), std::back_inserter(names));
  }
  return names;
}

/// Adds `children`, which were local before the request, and the names that are local now.
void Directory::AddLocalNames(const std::string& key, std::vector<InodeTable::LocalChild> children) {
  std::erase_if(children, [&](const auto& child) {
    auto known = core_->metadata.Find(key + child.name);
    return known && known->absent();
  });
  std::ranges::move(core_->table.LocalChildren(inode_->id), std::back_inserter(children));
  for (auto& child : children) {
    if (!local_.insert(child.name).second) continue;
    std::erase_if(page_, [&](const ListedName& listed) { return listed.name == child.name; });
    const auto state = child.kind == NodeKind::kFile ? Metadata::State::kFile : Metadata::State::kDirectory;
    // For a file only its existence is certain: it may have been published since. So any other answer is newer.
    const TimePoint as_of = child.kind == NodeKind::kFile ? TimePoint() : core_->clock.Now();
    page_.insert(page_.begin(), {std::move(child.name), Metadata{.state = state, .as_of = as_of}});
  }
}

}  // namespace millrace::vfs
