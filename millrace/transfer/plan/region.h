// Where files and objects really are, however their places are spelled: symbolic links, bind mounts and Millrace mounts
// give one tree several names. Moves and deletions ask here whether two places overlap.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "millrace/base/result.h"
#include "millrace/object/read_store.h"

namespace millrace::transfer {

/// All that lies below a path of one file system or store.
struct Region {
  std::string domain;  ///< "8:1" (a file system's device number), "http://host:9000", "s3:"
  std::string path;    ///< from the domain's root, without slashes at its ends: "bucket/folder"
};

/// The region of the keys that begin with `prefix`.
Region RegionOf(const object::ReadStore& store, const std::string& prefix);
/// The region of a local folder, and one for each mount below it. The folder need not exist. Blocks on mounts.
Result<std::vector<Region>> RegionsOf(const std::string& folder);

enum class Overlap {
  kNone,
  kSame,
  kFirstInSecond,
  kSecondInFirst,
};
/// How regions lie to each other. Endpoints are the same if their names have an address and the port in common;
/// resolving them may block.
Overlap Compare(const Region& first, const Region& second);
/// The first overlap of any two, or kNone.
Overlap Compare(const std::vector<Region>& first, const std::vector<Region>& second);

/// Tells whether two places are one file or object. Remembers what mounts have said. One owner.
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
  std::map<std::string, std::optional<std::string>> folders_;  ///< what LocationInMount said of the last folders
};

}  // namespace millrace::transfer
