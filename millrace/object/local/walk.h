// Walks the files below a folder in the order of their keys, one folder at a time.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "millrace/object/local/paths.h"
#include "millrace/object/object_info.h"

namespace millrace::object {

/// A cursor over the regular files below a root whose keys begin with a prefix, in the byte order of the keys. Keeps
/// only the names in the folders on the way to the current file, so its memory is that of the largest folders on one
/// path. Follows symbolic links within the root, unless Options says otherwise. Skips links to a folder above
/// themselves, and what is neither a file nor a folder. Files that are created or deleted meanwhile may or may not
/// appear. Not thread-safe.
class TreeWalker {
 public:
  /// The treatment of symbolic links. To callers that remove files, a link is an item of its own, with the ETag
  /// kLinkETag; the key of a link to a folder ends with a slash.
  enum class Links {
    kFollow,  ///< a link counts as its target
    kList,    ///< a link is an item and is never followed
    kSkip,    ///< there are no links
    kBoth,    ///< a link to a folder is an item, followed by the files in that folder
  };
  static constexpr std::string_view kLinkETag = "link";
  struct Options {
    std::string prefix;
    Links links = Links::kFollow;
    /// Called for names that the walk skips: folders (with a slash at the end) and names that cannot be read, and names
    /// that are not UTF-8 or too long for a key. With kUnsupported: FIFOs, sockets, devices, and links without a file
    /// or folder at their end. Not called for links to a folder above themselves. If empty, an unreadable folder fails
    /// the walk, and the others are skipped silently.
    std::function<void(const std::string& path, const Error& error)> on_problem;
    /// Called for the store's own folders, with the key of the parent folder and their name.
    std::function<void(const std::string& folder, const std::string& name)> on_reserved;
  };
  /// `root` must outlive the walker.
  TreeWalker(const RootFolder& root, Options options);
  ~TreeWalker();

  /// The current file (key, size, etag, modified); null after the last. Valid until the next call.
  Result<const ObjectInfo*> Peek();
  void Advance();
  /// Moves forward to the first file whose key is not less than `key`. Never moves back.
  void Seek(const std::string& key);

 private:
  struct Folder;
  struct FolderEntry;
  Status Enter(std::string key);
  std::optional<FolderEntry> Classify(const Folder& folder, std::string segment, unsigned char type) const;
  std::string PathOf(const std::string& key) const { return root_.PathOf(key); }
  bool Report(const std::string& key, const Error& error) const;
  void Position(Folder& folder) const;
  bool IsAncestor(const struct stat& status) const;
  /// Examines the current name of the top folder. True if it is a file, which is current_ then.
  Result<bool> Look();

  const RootFolder& root_;
  Options options_;
  bool started_ = false;
  std::string from_;  ///< keys less than this one are skipped
  std::vector<std::unique_ptr<Folder>> stack_;
  std::optional<ObjectInfo> current_;
};

}  // namespace millrace::object
