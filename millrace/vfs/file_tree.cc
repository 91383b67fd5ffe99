#include "millrace/vfs/file_tree.h"

#include <utility>
#include <vector>

#include "millrace/base/process/process_name.h"
#include "millrace/base/result.h"
#include "millrace/base/text.h"
#include "millrace/cache/block_cache.h"
#include "millrace/vfs/tree.h"

namespace millrace::vfs {
namespace {

/// The lookup of an inode that a call made. Takes it back.
class HeldInode {
 public:
  /// The root, which needs no lookup.
  explicit HeldInode(Tree& tree) : tree_(&tree) { attributes_.inode = kRootInode; }
  /// REQUIRES: `attributes` are the result of a lookup.
  HeldInode(Tree& tree, const NodeAttributes& attributes) : tree_(&tree), attributes_(attributes) {}
  HeldInode(HeldInode&& other) noexcept : tree_(std::exchange(other.tree_, nullptr)), attributes_(other.attributes_) {}
  HeldInode& operator=(HeldInode&& other) noexcept {
    std::swap(tree_, other.tree_);
    std::swap(attributes_, other.attributes_);
    return *this;
  }
  ~HeldInode() {
    if (tree_ != nullptr && id() != kRootInode) tree_->Forget(id(), 1);
  }

  InodeId id() const { return attributes_.inode; }
  /// Not filled for the root.
  const NodeAttributes& attributes() const { return attributes_; }

 private:
  Tree* tree_;
  NodeAttributes attributes_;
};

/// The folder of a path, and the name in it.
struct PathInFolder {
  HeldInode parent;
  std::string name;
};

Error NoSuchPath(std::string_view path) { return {Code::kNotFound, fmt::format("there is no {}", path)}; }

Result<std::optional<HeldInode>> Walk(Tree& tree, const std::vector<std::string_view>& names,
                                      const object::Call& call) {
  HeldInode at(tree);
  for (std::string_view name : names) {
    auto found = tree.Lookup(at.id(), name, call);
    if (!found && found.error().code() == Code::kNotDirectory) return std::nullopt;
    if (!found) return Fail(std::move(found).error());
    if (!*found) return std::nullopt;
    at = HeldInode(tree, (*found)->attributes);
  }
  return at;
}

std::vector<std::string_view> NamesOf(std::string_view path) {
  std::vector<std::string_view> names = Split(path, '/');
  std::erase(names, "");
  return names;
}

/// Errors: kNotFound.
Result<HeldInode> WalkTo(Tree& tree, std::string_view path, const object::Call& call) {
  auto found = MR_TRY(Walk(tree, NamesOf(path), call));
  if (!found) return Fail(NoSuchPath(path));
  return *std::move(found);
}

/// Errors: kInvalidArgument for the root; kNotFound if the folder does not exist.
Result<PathInFolder> WalkToParent(Tree& tree, std::string_view path, const object::Call& call) {
  auto names = NamesOf(path);
  if (names.empty())
    return Fail(Code::kInvalidArgument, "the root of a tree cannot be made, removed or renamed; name a path below it");
  std::string name(names.back());
  names.pop_back();
  auto parent = MR_TRY(Walk(tree, names, call));
  if (!parent) return Fail(Code::kNotFound, "the folder of {} does not exist; create it first", path);
  return PathInFolder{*std::move(parent), std::move(name)};
}

Result<TreeOptions> OptionsOf(const FileTreeOptions& options, const object::Location& root) {
  if (!options.read_only && options.staging_directory.empty()) {
    return Fail(Code::kInvalidArgument, "a tree that is written to needs a staging folder: set staging_directory");
  }
  TreeOptions made{.prefix = root.key, .read_only = options.read_only, .metadata_ttl = options.metadata_ttl};
  if (!made.prefix.empty() && !made.prefix.ends_with('/')) made.prefix += '/';
  made.negative_ttl = options.metadata_ttl;
  if (!options.read_only) made.staging_directory = std::filesystem::absolute(options.staging_directory);
  made.staging_limit = options.staging_limit;
  made.staging_target = root.store->Identity();
  made.owner = ProcessName();
  made.owner_alive = IsProcessAlive;
  made.log = options.log;
  return made;
}

cache::BlockCache::Options CacheOptionsOf(const FileTreeOptions& options) {
  cache::BlockCache::Options made{.memory_bytes = options.cache_bytes, .log = options.log};
  if (!options.cache_directory.empty()) {
    made.directory = std::filesystem::absolute(options.cache_directory);
    made.disk_bytes = options.cache_disk_bytes;
  }
  return made;
}

}  // namespace

struct TreeFile::Rep {
  Tree& tree;
  HeldInode inode;
  std::unique_ptr<File> file;  ///< destroyed before the lookup is taken back
};

TreeFile::TreeFile(std::unique_ptr<Rep> rep) : rep_(std::move(rep)) {}
TreeFile::~TreeFile() = default;

Result<std::size_t> TreeFile::Read(std::uint64_t offset, MutableByteSpan into, object::Call call) {
  return rep_->file->Read(offset, into, std::move(call));
}
Status TreeFile::Write(std::uint64_t offset, ByteSpan bytes, object::Call call) {
  return rep_->file->Write(offset, bytes, std::move(call));
}
Status TreeFile::Truncate(std::uint64_t size, object::Call call) { return rep_->file->Truncate(size, std::move(call)); }
Result<std::uint64_t> TreeFile::Size(object::Call call) {
  return MR_TRY(rep_->tree.GetAttributes(rep_->inode.id(), std::move(call))).attributes.size;
}
Status TreeFile::Sync(object::Call call) { return rep_->file->Sync(std::move(call)); }
Status TreeFile::Close(object::Call call) { return rep_->file->Close(std::move(call)); }

struct FileTree::Rep {
  std::shared_ptr<object::Store> store;
  std::unique_ptr<cache::BlockCache> cache;
  std::unique_ptr<Tree> tree;
};

FileTree::FileTree(std::unique_ptr<Rep> rep) : rep_(std::move(rep)) {}
FileTree::~FileTree() = default;

Result<std::unique_ptr<FileTree>> FileTree::Open(object::Connection& connection, std::string_view url,
                                                 MemoryBudget& budget, FileTreeOptions options, object::Call call) {
  object::Location root = MR_TRY(object::Locate(connection, url));
  TreeOptions of_tree = MR_TRY(OptionsOf(options, root));
  auto cache = MR_TRY(cache::BlockCache::Open(*root.store, budget, CacheOptionsOf(options)));
  auto tree = MR_TRY(Tree::Open(*root.store, *cache, budget, std::move(of_tree), std::move(call)));
  if (!tree->recovery()) {
    options.log.Warning("some staged files were not taken over", {{"error", tree->recovery().error()}});
  }
  return std::unique_ptr<FileTree>(
      new FileTree(std::make_unique<Rep>(std::move(root.store), std::move(cache), std::move(tree))));
}

Result<std::optional<NodeAttributes>> FileTree::Find(std::string_view path, object::Call call) {
  const auto names = NamesOf(path);
  if (names.empty()) return MR_TRY(rep_->tree->GetAttributes(kRootInode, std::move(call))).attributes;
  auto found = MR_TRY(Walk(*rep_->tree, names, call));
  if (!found) return std::nullopt;
  return found->attributes();
}

Status FileTree::List(std::string_view path, const Visit& visit, object::Call call) {
  const HeldInode folder = MR_TRY(WalkTo(*rep_->tree, path, call));
  if (folder.id() != kRootInode && folder.attributes().kind != NodeKind::kDirectory) {
    return Fail(Code::kNotDirectory, "{} is not a folder", path);
  }
  auto directory = MR_TRY(rep_->tree->OpenDirectory(folder.id()));
  std::uint64_t cookie = 0;
  bool wanted = true;
  for (bool more = true; more && wanted;) {
    more = false;
    MR_TRY(directory->ReadPlus(
        cookie,
        [&](const DirectoryEntry& entry) {
          wanted = visit(entry.name, entry.entry.attributes);
          if (!wanted) return false;  // the entry counts as not seen: it has no lookup
          rep_->tree->Forget(entry.entry.attributes.inode, 1);
          cookie = entry.next_cookie;
          return more = true;
        },
        call));
  }
  return {};
}

Result<std::unique_ptr<TreeFile>> FileTree::OpenFile(std::string_view path, OpenMode mode, object::Call call) {
  Tree& tree = *rep_->tree;
  const bool writes = mode != OpenMode::kRead;
  const bool makes = writes;
  std::optional<HeldInode> inode;
  std::unique_ptr<File> file;
  if (mode != OpenMode::kCreate) inode = MR_TRY(Walk(tree, NamesOf(path), call));
  if (!inode && !makes) return Fail(NoSuchPath(path));
  if (inode) {
    file = MR_TRY(tree.OpenFile(inode->id(), {.write = writes, .truncate = mode == OpenMode::kTruncate}, call));
  } else {
    const PathInFolder at = MR_TRY(WalkToParent(tree, path, call));
    auto made = MR_TRY(tree.Create(at.parent.id(), at.name, /*exclusive=*/mode == OpenMode::kCreate, {}, call));
    inode.emplace(tree, made.entry.attributes);
    file = std::move(made.file);
  }
  return std::unique_ptr<TreeFile>(
      new TreeFile(std::make_unique<TreeFile::Rep>(tree, *std::move(inode), std::move(file))));
}

Result<std::string> FileTree::ReadLink(std::string_view path, object::Call call) {
  const HeldInode link = MR_TRY(WalkTo(*rep_->tree, path, call));
  if (link.attributes().kind != NodeKind::kSymlink) {
    return Fail(Code::kInvalidArgument, "{} is not a symbolic link", path);
  }
  return rep_->tree->ReadLink(link.id(), std::move(call));
}

Status FileTree::MakeDirectory(std::string_view path, object::Call call) {
  const PathInFolder at = MR_TRY(WalkToParent(*rep_->tree, path, call));
  const auto made = MR_TRY(rep_->tree->MakeDirectory(at.parent.id(), at.name, {}, std::move(call)));
  rep_->tree->Forget(made.attributes.inode, 1);
  return {};
}

Status FileTree::Remove(std::string_view path, object::Call call) {
  Tree& tree = *rep_->tree;
  const PathInFolder at = MR_TRY(WalkToParent(tree, path, call));
  const auto found = MR_TRY(Walk(tree, NamesOf(path), call));
  if (!found) return Fail(NoSuchPath(path));
  if (found->attributes().kind == NodeKind::kDirectory) {
    return tree.RemoveDirectory(at.parent.id(), at.name, std::move(call));
  }
  return tree.Unlink(at.parent.id(), at.name, std::move(call));
}

Status FileTree::Rename(std::string_view from, std::string_view to, object::Call call) {
  Tree& tree = *rep_->tree;
  const PathInFolder old_path = MR_TRY(WalkToParent(tree, from, call));
  const PathInFolder new_path = MR_TRY(WalkToParent(tree, to, call));
  return tree.Rename(old_path.parent.id(), old_path.name, new_path.parent.id(), new_path.name, {}, std::move(call));
}

Status FileTree::FlushAll(object::Call call) { return rep_->tree->FlushAll(std::move(call)); }

}  // namespace millrace::vfs
