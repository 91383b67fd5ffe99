#include "millrace/object/file/walk.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>

#include "millrace/object/rules.h"

namespace millrace::object {
namespace {

/// A name in a folder. Folders sort as the keys below them, by their segment with a final slash.
struct FolderEntry {
  std::string order;  ///< the segment; with a trailing '/' for a folder
  bool folder = false;
  bool link = false;
};

WallTime ModifiedTime(const struct stat& status) {
  return WallTime(std::chrono::duration_cast<WallTime::duration>(std::chrono::seconds(status.st_mtim.tv_sec) +
                                                                 std::chrono::nanoseconds(status.st_mtim.tv_nsec)));
}

struct CloseDir {
  void operator()(DIR* directory) const { closedir(directory); }
};

}  // namespace

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
  while (const dirent* found = readdir(folder->directory.get())) {
    std::string_view name = found->d_name;
    if (name == "." || name == "..") continue;
    std::optional<std::string> segment = SegmentOfName(name);
    if (!segment) {
      if (options_.on_reserved) options_.on_reserved(folder->key, std::string(name));
      continue;
    }
    bool link = found->d_type == DT_LNK || found->d_type == DT_UNKNOWN, is_folder = found->d_type == DT_DIR;
    if (!link && !is_folder && found->d_type != DT_REG) continue;
    if (link && options_.links != Links::kFollow) {
      struct stat itself, of_target;
      if (fstatat(dirfd(folder->directory.get()), found->d_name, &itself, AT_SYMLINK_NOFOLLOW) != 0) continue;
      link = S_ISLNK(itself.st_mode);  // readdir may not know the type
      is_folder = S_ISDIR(itself.st_mode);
      if (!link && !is_folder && !S_ISREG(itself.st_mode)) continue;
      if (link) {
        is_folder =
            fstatat(dirfd(folder->directory.get()), found->d_name, &of_target, 0) == 0 && S_ISDIR(of_target.st_mode);
      }
    } else if (link) {
      auto target = root_.TryOpen(MR_TRY(PathOfKey(folder->key + *segment)).Full(), O_PATH);
      struct stat of_target;
      if (!target || !*target || fstat(target->get(), &of_target) != 0) continue;
      is_folder = S_ISDIR(of_target.st_mode);
      if (!is_folder && !S_ISREG(of_target.st_mode)) continue;
    }
    if (is_folder) *segment += '/';
    folder->entries.push_back({*std::move(segment), is_folder, link});
  }
  std::ranges::sort(folder->entries, {}, &FolderEntry::order);
  Position(*folder);
  stack_.push_back(std::move(folder));
  return {};
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
  if (Status possible = CheckKey(key); !possible) {
    if (options_.on_problem) options_.on_problem(key, possible.error());
    return false;
  }
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
    if (!target || !*target || fstat(target->get(), &status) != 0) return false;
  } else if (fstatat(above, NameOfSegment(entry.order).c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) {
    return false;
  }
  if (!S_ISREG(status.st_mode)) return false;
  current_ = ObjectInfo{.key = std::move(key),
                        .size = static_cast<std::uint64_t>(status.st_size),
                        .etag = FileETag(status),
                        .modified = ModifiedTime(status)};
  return true;
}

}  // namespace millrace::object
