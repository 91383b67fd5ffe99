// Files beneath a folder in the order of their keys, a folder at a time.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "millrace/object/file/paths.h"
#include "millrace/object/object_info.h"

namespace millrace::object {

/// A cursor over the regular files beneath a root whose keys begin with a prefix, in the byte order of the keys. Holds
/// the names of the folders on the way to the current file, nothing else: memory is that of the largest folders on one
/// path. Symbolic links are followed within the root, unless Options says otherwise; one that leads back to a folder
/// above itself is passed over, as are sockets, pipes and devices. Files that come and go meanwhile may or may not
/// show. One owner.
class TreeWalker {
 public:
  /// What symbolic links are to a walker. For those who remove files a link is an item itself, with the ETag kLinkETag;
  /// the key of one that leads to a folder ends with a slash.
  enum class Links {
    kFollow,  ///< a link is what it leads to
    kList,    ///< a link is an item, and never followed
    kBoth,    ///< a link to a folder is an item, before the files that it leads to
  };
  static constexpr std::string_view kLinkETag = "link";
  struct Options {
    std::string prefix;
    Links links = Links::kFollow;
    /// Told of what had to be passed over: unreadable folders, names that are no UTF-8 or too long for a key. Without
    /// it an unreadable folder fails the walk, and impossible names are passed over in silence.
    std::function<void(const std::string& path, const Error& error)> on_problem;
    /// Told of the store's own folders: the key of the folder they are in, and their name.
    std::function<void(const std::string& folder, const std::string& name)> on_reserved;
  };
  /// `root` must outlive the walker.
  TreeWalker(const RootFolder& root, Options options);
  ~TreeWalker();

  /// The current file (key, size, etag, modified), or nullptr past the end. Valid until the next call.
  Result<const ObjectInfo*> Peek();
  void Advance();
  /// Goes on to the first file whose key is not before `key`. Never goes back.
  void Seek(const std::string& key);

 private:
  struct Folder;
  Status Enter(std::string key);
  void Position(Folder& folder) const;
  bool IsAncestor(const struct stat& status) const;
  /// Looks at the top folder's current name: true when it was a file that is now current_.
  Result<bool> Look();

  const RootFolder& root_;
  Options options_;
  bool started_ = false;
  std::string from_;  ///< keys before this one are passed over
  std::vector<std::unique_ptr<Folder>> stack_;
  std::optional<ObjectInfo> current_;
};

}  // namespace millrace::object
