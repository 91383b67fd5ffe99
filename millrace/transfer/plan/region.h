// Finds out whether two paths or URLs lead to the same files or objects. Symbolic links, bind mounts and Millrace
// mounts give one tree several names. Moves and deletions check here whether source and destination overlap.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "millrace/base/result.h"
#include "millrace/object/read_store.h"

namespace millrace::transfer {

/// A path of one file system or store, and everything below it. Two regions with the same fields are the same tree.
struct Region {
  std::string domain;  ///< "8:1" (a file system's device number), "http://host:9000", "s3:"
  std::string path;    ///< from the domain's root, without slashes at its ends: "bucket/folder"
};

/// Returns the region of the keys that begin with `prefix`.
Region RegionOf(const object::ReadStore& store, const std::string& prefix);
/// Returns the region of a local folder, and one for each mount below it. The folder need not exist. May block on the
/// mounts' servers.
Result<std::vector<Region>> RegionsOf(const std::string& folder);

enum class Overlap {
  kNone,
  kSame,
  kFirstInSecond,
  kSecondInFirst,
};
/// Returns how two regions overlap. Two endpoints count as the same if their names have an address and the port in
/// common. An access point of S3 may be any bucket, so only the keys count there. Resolving the names may block.
Overlap Compare(const Region& first, const Region& second);
/// Returns the first overlap of any two regions, or kNone.
Overlap Compare(const std::vector<Region>& first, const std::vector<Region>& second);

/// Finds out whether two names lead to the same file or object. Caches the answers of mounts. One owner.
class SameFileCheck {
 public:
  struct Name {
    const object::ReadStore& store;
    bool local = false;
    const std::string& key;  ///< of a local file: the absolute path without its first slash
  };
  bool Same(const Name& a, const Name& b);

 private:
  std::optional<Region> Locate(const Name& name);
  std::map<std::string, std::optional<std::string>> folders_;  ///< results of LocationInMount() by folder
};

}  // namespace millrace::transfer
