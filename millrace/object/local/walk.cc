#include "millrace/object/local/walk.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>

#include "millrace/base/files/special_file.h"
#include "millrace/object/rules.h"

namespace millrace::object {
namespace {

WallTime ModifiedTime(const struct stat& status) {
  return WallTime(std::chrono::duration_cast<WallTime::duration>(std::chrono::seconds(status.st_mtim.tv_sec) +
                                                                 std::chrono::nanoseconds(status.st_mtim.tv_nsec)));
}

struct CloseDir {
  void operator()(DIR* directory) const { closedir(directory); }
};

}  // namespace

/// A name in a folder. Folders sort as the keys below them, by their segment with a final slash.
struct TreeWalker::FolderEntry {
  std::string order;  ///< the segment; with a trailing '/' for a folder
  bool folder = false;
  bool link = false;
  std::unique_ptr<const Error> problem;  ///< why it is neither a file nor a folder; null for those
};

struct TreeWalker::Folder {
  std::string key;  ///< "" or "a/b/"
  dev_t device = 0;
  ino_t inode = 0;
  std::unique_ptr<DIR, CloseDir> directory;
  std::vector<FolderEntry> entries;
  std::size_t next = 0;
};

TreeWalker::TreeWalker(const RootFolder& root, Options options)
    : root_(root), options_(std::move(options)), from_(options_.prefix) {}

TreeWalker::~TreeWalker() = default;

Result<const ObjectInfo*> TreeWalker::Peek() {
  if (!started_) {
    started_ = true;
    std::size_t slash = options_.prefix.rfind('/');
    MR_TRY(Enter(slash == std::string::npos ? "" : options_.prefix.substr(0, slash + 1)));
  }
  while (!current_ && !stack_.empty()) {
    if (stack_.back()->next == stack_.back()->entries.size()) {
      stack_.pop_back();
      continue;
    }
    if (MR_TRY(Look())) break;
  }
  return current_ ? &*current_ : nullptr;
}

void TreeWalker::Advance() { current_.reset(); }

void TreeWalker::Seek(const std::string& key) {
  if (key <= from_) return;
  from_ = key;
  if (current_ && current_->key < from_) current_.reset();
  if (current_) return;
  while (!stack_.empty() && stack_.back()->key < from_ && !from_.starts_with(stack_.back()->key)) stack_.pop_back();
  if (!stack_.empty()) Position(*stack_.back());
}

/// Skips the entries that are less than from_.
void TreeWalker::Position(Folder& folder) const {
  if (!from_.starts_with(folder.key)) return;
  std::string_view rest = std::string_view(from_).substr(folder.key.size());
  auto begin = folder.entries.begin() + static_cast<std::ptrdiff_t>(folder.next);
  auto found = std::lower_bound(begin, folder.entries.end(), rest,
                                [](const FolderEntry& entry, std::string_view wanted) { return entry.order < wanted; });
  // The folder just before may contain the key.
  if (found != begin && std::prev(found)->folder && rest.starts_with(std::prev(found)->order)) --found;
  folder.next = static_cast<std::size_t>(found - folder.entries.begin());
}

Status TreeWalker::Enter(std::string key) {
  std::string path;
  if (!key.empty()) {
    auto possible = PathOfKey(std::string_view(key).substr(0, key.size() - 1));
    if (!possible) return {};
    path = possible->Full();
  }
  auto opened = root_.TryOpen(path, O_RDONLY | O_DIRECTORY);
  if (!opened) {
    if (!options_.on_problem) return Fail(opened.error());
    options_.on_problem(key, opened.error());
    return {};
  }
  struct stat status;
  if (!*opened || fstat(opened->get(), &status) != 0 || IsAncestor(status)) return {};
  auto folder = std::make_unique<Folder>();
  folder->key = std::move(key);
  folder->device = status.st_dev;
  folder->inode = status.st_ino;
  folder->directory.reset(fdopendir(opened->get()));
  if (!folder->directory) return Fail(ErrnoError(errno, "reading folder " + folder->key));
  (void)opened->Release();
  errno = 0;
  while (const dirent* found = readdir(folder->directory.get())) {
    std::string_view name = found->d_name;
    if (name == "." || name == "..") continue;
    std::optional<std::string> segment = SegmentOfName(name);
    if (!segment) {
      if (options_.on_reserved) options_.on_reserved(folder->key, std::string(name));
    } else if (auto entry = Classify(*folder, *std::move(segment), found->d_type)) {
      folder->entries.push_back(*std::move(entry));
    }
    errno = 0;
  }
  if (errno != 0) {
    const Error unread = ErrnoError(errno, "reading folder " + PathOf(folder->key));
    if (!options_.on_problem) return Fail(unread);
    options_.on_problem(folder->key, unread);
  }
  std::ranges::sort(folder->entries, {}, &FolderEntry::order);
  Position(*folder);
  stack_.push_back(std::move(folder));
  return {};
}

/// Finds out what a name is. `type` is readdir's answer. No value if the name is gone, or is not to be seen.
std::optional<TreeWalker::FolderEntry> TreeWalker::Classify(const Folder& folder, std::string segment,
                                                            unsigned char type) const {
  FolderEntry entry{.order = std::move(segment), .folder = type == DT_DIR, .link = false, .problem = nullptr};
  if (entry.folder) entry.order += '/';
  if (type == DT_REG || type == DT_DIR) return entry;
  const std::string name = NameOfSegment(entry.order), key = folder.key + entry.order;
  auto because = [&entry](Error why) {
    entry.problem = std::make_unique<const Error>(std::move(why));
    return std::move(entry);
  };
  mode_t mode = DTTOIF(type);
  if (type == DT_LNK || type == DT_UNKNOWN) {
    struct stat status;
    if (fstatat(dirfd(folder.directory.get()), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) {
      if (errno == ENOENT) return std::nullopt;
      return because(ErrnoError(errno, "reading the state of " + PathOf(key)));
    }
    mode = status.st_mode;
  }
  if (S_ISLNK(mode)) {
    if (options_.links == Links::kSkip) return std::nullopt;
    entry.link = true;
    struct stat target;
    if (options_.links != Links::kFollow) {
      entry.folder = fstatat(dirfd(folder.directory.get()), name.c_str(), &target, 0) == 0 && S_ISDIR(target.st_mode);
      if (entry.folder) entry.order += '/';
      return entry;
    }
    auto path = PathOfKey(key);
    if (!path) return because(path.error());
    auto file = root_.TryOpen(path->Full(), O_PATH);
    if (!file) return because(file.error());
    if (!*file || fstat(file->get(), &target) != 0) {
      return because({Code::kUnsupported, PathOf(key) + " is a symbolic link that leads nowhere"});
    }
    mode = target.st_mode;
  }
  if (const std::string_view special = SpecialTypeOf(mode); !special.empty()) {
    return because({Code::kUnsupported, fmt::format("{} {} {}, neither a file nor a folder", PathOf(key),
                                                    entry.link ? "leads to" : "is", special)});
  }
  entry.folder = S_ISDIR(mode);
  if (entry.folder) entry.order += '/';
  return entry;
}

/// Tells the caller what is skipped. Returns false: there is no file.
bool TreeWalker::Report(const std::string& key, const Error& error) const {
  if (options_.on_problem) options_.on_problem(key, error);
  return false;
}

bool TreeWalker::IsAncestor(const struct stat& status) const {
  return std::ranges::any_of(
      stack_, [&](const auto& folder) { return folder->device == status.st_dev && folder->inode == status.st_ino; });
}

Result<bool> TreeWalker::Look() {
  Folder& folder = *stack_.back();
  const FolderEntry& entry = folder.entries[folder.next++];
  std::string key = folder.key + entry.order;
  if (!key.starts_with(options_.prefix) && !options_.prefix.starts_with(key)) {
    if (key > options_.prefix) folder.next = folder.entries.size();
    return false;
  }
  if (Status possible = CheckKey(key); !possible) return Report(key, possible.error());
  if (entry.problem) return key >= from_ && Report(key, *entry.problem);
  const bool link_apart = entry.link && options_.links != Links::kFollow;
  const int above = dirfd(folder.directory.get());
  struct stat status;
  if (link_apart && key >= from_) {
    const bool has_file = fstatat(above, NameOfSegment(entry.order).c_str(), &status, 0) == 0 && !entry.folder;
    current_ = ObjectInfo{.key = key,
                          .size = has_file ? static_cast<std::uint64_t>(status.st_size) : 0,
                          .etag = std::string(kLinkETag),
                          .modified = has_file ? ModifiedTime(status) : WallTime()};
  }
  if (entry.folder && !(link_apart && options_.links == Links::kList)) MR_TRY(Enter(key));
  if (link_apart || entry.folder) return current_.has_value();
  if (key < from_) return false;
  if (entry.link) {
    auto target = root_.TryOpen(MR_TRY(PathOfKey(key)).Full(), O_PATH);
    if (!target) return Report(key, target.error());
    if (!*target || fstat(target->get(), &status) != 0) return false;  // gone meanwhile
  } else if (fstatat(above, NameOfSegment(entry.order).c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) {
    return errno != ENOENT && Report(key, ErrnoError(errno, "reading the state of " + PathOf(key)));
  }
  if (!S_ISREG(status.st_mode)) return false;
  current_ = ObjectInfo{.key = std::move(key),
                        .size = static_cast<std::uint64_t>(status.st_size),
                        .etag = FileETag(status),
                        .modified = ModifiedTime(status)};
  return true;
}

}  // namespace millrace::object
