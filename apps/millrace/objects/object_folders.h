// Empty folders of local trees, which no object stands for by itself.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "millrace/transfer/plan/items.h"

namespace millrace::cli {

/// Returns the folders below `root` that have no entries, as "a/b/", in byte order. Follows no symbolic links below
/// `root`. Leaves out what cannot be read.
std::vector<std::string> EmptyFolders(const std::filesystem::path& root);

/// Returns an item for an empty folder "a/b/" below the key `folder`: like the marker object of a mount, it is empty
/// and older than anything.
transfer::Item FolderItem(const std::string& folder, const std::string& name);

/// Returns the items of `files` and, in order among them, `folders` below the key `folder`.
std::unique_ptr<transfer::ItemStream> WithFolders(std::unique_ptr<transfer::ItemStream> files, std::string folder,
                                                  std::vector<std::string> folders);

/// Removes empty folders below `root`, and those that become empty by it, unless `keeps` says so of "a/b/". Follows no
/// symbolic links. Leaves what cannot be removed.
void RemoveEmptyFolders(const std::filesystem::path& root, const std::function<bool(const std::string& name)>& keeps);

}  // namespace millrace::cli
