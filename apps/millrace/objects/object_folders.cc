#include "apps/millrace/objects/object_folders.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

namespace millrace::cli {
namespace {

namespace fs = std::filesystem;

/// Returns the folders in `folder`, and whether it has any entry.
std::pair<std::vector<std::string>, bool> FoldersIn(const fs::path& folder) {
  std::vector<std::string> folders;
  bool any = false;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    any = true;
    if (fs::is_directory(at->symlink_status(error))) folders.push_back(at->path().filename().string());
  }
  return {std::move(folders), any || error};
}

void AddEmpty(const fs::path& root, const std::string& name, std::vector<std::string>& empty) {
  const auto [folders, any] = FoldersIn(root / name);
  if (!any && !name.empty()) empty.push_back(name);
  for (const std::string& folder : folders) AddEmpty(root, name + folder + "/", empty);
}

class FolderStream final : public transfer::ItemStream {
 public:
  FolderStream(std::unique_ptr<transfer::ItemStream> files, std::string folder, std::vector<std::string> folders)
      : files_(std::move(files)), folder_(std::move(folder)), folders_(std::move(folders)) {}

  Result<std::optional<transfer::Item>> Next() override {
    if (!begun_) next_ = MR_TRY(files_->Next());
    begun_ = true;
    if (at_ < folders_.size() && (!next_ || folders_[at_] < next_->name)) return FolderItem(folder_, folders_[at_++]);
    std::optional<transfer::Item> item = std::move(next_);
    if (item) next_ = MR_TRY(files_->Next());
    return item;
  }

 private:
  const std::unique_ptr<transfer::ItemStream> files_;
  const std::string folder_;
  const std::vector<std::string> folders_;
  std::size_t at_ = 0;
  bool begun_ = false;
  std::optional<transfer::Item> next_;
};

void Prune(const fs::path& root, const std::string& name, const std::function<bool(const std::string&)>& keeps) {
  for (const std::string& folder : FoldersIn(root / name).first) Prune(root, name + folder + "/", keeps);
  if (!name.empty() && !keeps(name)) ::rmdir((root / name).c_str());  // fails if there is something in it
}

}  // namespace

std::vector<std::string> EmptyFolders(const fs::path& root) {
  std::vector<std::string> empty;
  AddEmpty(root, "", empty);
  std::ranges::sort(empty);
  return empty;
}

transfer::Item FolderItem(const std::string& folder, const std::string& name) {
  return {.name = name, .info = {.key = folder + name}};
}

std::unique_ptr<transfer::ItemStream> WithFolders(std::unique_ptr<transfer::ItemStream> files, std::string folder,
                                                  std::vector<std::string> folders) {
  return std::make_unique<FolderStream>(std::move(files), std::move(folder), std::move(folders));
}

void RemoveEmptyFolders(const fs::path& root, const std::function<bool(const std::string& name)>& keeps) {
  Prune(root, "", keeps);
}

}  // namespace millrace::cli
