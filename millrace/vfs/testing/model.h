// A model of a file tree, as a map, with which tests compare.
#pragma once

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "millrace/vfs/testing/driver.h"

namespace millrace::vfs {

/// A file tree as a map. Directories are made and removed; their names end with '/'.
class Model {
 public:
  std::map<std::string, std::string> files;
  std::set<std::string> directories = {""};
  std::map<std::string, std::uint32_t> permissions;  ///< of files and directories that have others than the usual

  bool operator==(const Model&) const = default;

  bool IsDirectory(const std::string& path) const { return directories.contains(path.empty() ? "" : path + "/"); }
  bool Exists(const std::string& path) const { return IsDirectory(path) || files.contains(path); }
  static std::string Parent(const std::string& path) {
    auto slash = path.rfind('/');
    return slash == std::string::npos ? "" : path.substr(0, slash + 1);
  }
  /// Returns the result of walking to the parent.
  Code ParentError(const std::string& path) const {
    std::string parent = Parent(path);
    if (directories.contains(parent)) return kOk;
    for (std::size_t slash = parent.find('/'); slash != std::string::npos; slash = parent.find('/', slash + 1)) {
      std::string part = parent.substr(0, slash);
      if (files.contains(part)) return Code::kNotDirectory;
      if (!IsDirectory(part)) return Code::kNotFound;
    }
    return Code::kNotFound;
  }
  bool IsEmpty(const std::string& directory) const {
    auto below = [&](const std::string& path) { return path.size() > directory.size() && path.starts_with(directory); };
    for (const auto& [path, content] : files)
      if (below(path)) return false;
    for (const auto& path : directories)
      if (below(path)) return false;
    return true;
  }
  std::set<std::string> Names(const std::string& directory) const {
    std::set<std::string> names;
    for (const auto& [path, content] : files) {
      if (Parent(path) == directory) names.insert(path.substr(directory.size()));
    }
    for (const auto& path : directories) {
      if (!path.empty() && Parent(path.substr(0, path.size() - 1)) == directory)
        names.insert(path.substr(directory.size()));
    }
    return names;
  }

  static constexpr Code kOk = Code::kInternal;  ///< no operation may answer this

  Code Write(const std::string& path, const std::string& content) {
    if (Code parent = ParentError(path); parent != kOk) return parent;
    if (IsDirectory(path)) return Code::kIsDirectory;
    files[path] = content;
    return kOk;
  }
  Code Append(const std::string& path, const std::string& content) {
    if (Code found = FileError(path); found != kOk) return found;
    files[path] += content;
    return kOk;
  }
  Code FileError(const std::string& path) const {
    if (Code parent = ParentError(path); parent != kOk) return parent;
    if (IsDirectory(path)) return Code::kIsDirectory;
    return files.contains(path) ? kOk : Code::kNotFound;
  }
  Code Unlink(const std::string& path) {
    Code found = FileError(path);
    if (found == kOk) {
      files.erase(path);
      permissions.erase(path);
    }
    return found;
  }
  Code Mkdir(const std::string& path) {
    if (Code parent = ParentError(path); parent != kOk) return parent;
    if (Exists(path)) return Code::kAlreadyExists;
    directories.insert(path + "/");
    return kOk;
  }
  Code Rmdir(const std::string& path) {
    if (Code parent = ParentError(path); parent != kOk) return parent;
    if (files.contains(path)) return Code::kNotDirectory;
    if (!IsDirectory(path)) return Code::kNotFound;
    if (!IsEmpty(path + "/")) return Code::kNotEmpty;
    directories.erase(path + "/");
    permissions.erase(path);
    return kOk;
  }
  Code Rename(const std::string& from, const std::string& to, bool no_replace) {
    if (Code parent = ParentError(from); parent != kOk) return parent;
    if (Code parent = ParentError(to); parent != kOk) return parent;
    if (!Exists(from)) return Code::kNotFound;
    if (IsDirectory(from) && from != to && (to + "/").starts_with(from + "/")) return Code::kInvalidArgument;
    if (no_replace && Exists(to)) return Code::kAlreadyExists;
    if (from == to) return kOk;
    if (IsDirectory(from)) return RenameDirectory(from, to);
    if (IsDirectory(to)) return Code::kIsDirectory;
    files[to] = files[from];
    files.erase(from);
    permissions.erase(to);
    if (auto moved = permissions.extract(from)) {
      moved.key() = to;
      permissions.insert(std::move(moved));
    }
    return kOk;
  }
  Code RenameDirectory(const std::string& from, const std::string& to) {
    if (files.contains(to)) return Code::kNotDirectory;
    if (IsDirectory(to) && !IsEmpty(to + "/")) return Code::kNotEmpty;
    permissions.erase(to);
    auto moved = [&](const std::string& path) {
      return path == from || path.starts_with(from + "/") ? to + path.substr(from.size()) : path;
    };
    Model next;
    for (const auto& [path, content] : files) next.files[moved(path)] = content;
    for (const auto& path : directories) next.directories.insert(path.empty() ? path : moved(path));
    for (const auto& [path, bits] : permissions) next.permissions[moved(path)] = bits;
    *this = std::move(next);
    return kOk;
  }
  Code Chmod(const std::string& path, std::uint32_t bits) {
    if (Code parent = ParentError(path); parent != kOk) return parent;
    if (!Exists(path)) return Code::kNotFound;
    permissions.erase(path);
    if (bits != (IsDirectory(path) ? 0755u : 0644u)) permissions[path] = bits;
    return kOk;
  }
};

/// Returns what the tree shows below a directory. Contents are read through its files or from the store.
enum class Contents { kOfFiles, kOfObjects };
inline Model ModelOf(Driver& driver, Contents contents, const std::string& below = "") {
  Model model;
  auto visit = [&](auto& self, const std::string& directory) -> void {
    auto opened = driver.tree->OpenDirectory(*driver.Walk(directory));
    std::vector<std::pair<std::string, NodeAttributes>> entries;
    Status read = Driver::ReadToEnd(**opened, [&](const DirectoryEntry& entry) {
      entries.emplace_back(directory + std::string(entry.name), entry.entry.attributes);
    });
    EXPECT_TRUE(read) << read.error().ToString();
    for (const auto& [path, attributes] : entries) {
      const bool is_directory = attributes.kind == NodeKind::kDirectory;
      if (attributes.permissions != (is_directory ? 0755u : 0644u)) model.permissions[path] = attributes.permissions;
      if (is_directory) {
        model.directories.insert(path + "/");
        self(self, path + "/");
      } else {
        auto content = contents == Contents::kOfFiles ? driver.Read(path) : driver.Object(path);
        model.files[path] = content ? *std::move(content) : content.error().ToString();
      }
    }
  };
  visit(visit, below);
  return model;
}

/// Returns what a new mount shows.
inline Model Snapshot(Driver& driver) {
  driver.PassTtl();
  driver.clock.Advance(std::chrono::minutes(2));
  driver.Remount();
  return ModelOf(driver, Contents::kOfObjects);
}

inline std::string Describe(const Model& model) {
  std::string text;
  for (const auto& [path, content] : model.files) text += fmt::format("{} ({} bytes) ", path, content.size());
  for (const auto& path : model.directories) text += path + " ";
  for (const auto& [path, bits] : model.permissions) text += fmt::format("{}={:o} ", path, bits);
  return text;
}

inline bool Contains(const Model& larger, const Model& smaller) {
  auto contains = [](const auto& a, const auto& b) {
    return std::ranges::all_of(b, [&](const auto& item) { return std::ranges::find(a, item) != a.end(); });
  };
  return contains(larger.files, smaller.files) && contains(larger.directories, smaller.directories) &&
         contains(larger.permissions, smaller.permissions);
}

}  // namespace millrace::vfs
