// Random operations against a tree and against a small model of what a file tree is. They must agree in every answer.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "millrace/vfs/testing/driver.h"

namespace millrace::vfs {
namespace {

/// A file tree as a map. Directories are made and removed; their names end with '/'.
class Model {
 public:
  std::map<std::string, std::string> files;
  std::set<std::string> directories = {""};

  bool IsDirectory(const std::string& path) const { return directories.contains(path.empty() ? "" : path + "/"); }
  bool Exists(const std::string& path) const { return IsDirectory(path) || files.contains(path); }
  static std::string Parent(const std::string& path) {
    auto slash = path.rfind('/');
    return slash == std::string::npos ? "" : path.substr(0, slash + 1);
  }
  /// What walking to the parent gives.
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
    if (found == kOk) files.erase(path);
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
    return kOk;
  }
  Code Rename(const std::string& from, const std::string& to, bool no_replace) {
    if (Code parent = ParentError(from); parent != kOk) return parent;
    if (Code parent = ParentError(to); parent != kOk) return parent;
    if (!Exists(from)) return Code::kNotFound;
    if (IsDirectory(from)) return Code::kUnsupported;
    if (no_replace && Exists(to)) return Code::kAlreadyExists;
    if (from == to) return kOk;
    if (IsDirectory(to)) return Code::kIsDirectory;
    files[to] = files[from];
    files.erase(from);
    return kOk;
  }
};

template <class T>
Code CodeOf(const Result<T>& result) {
  return result ? Model::kOk : result.error().code();
}

class TreeModelTest : public testing::TestWithParam<int> {};

TEST_P(TreeModelTest, AnswersAsAFileTreeDoes) {
  const auto seed = static_cast<std::uint64_t>(GetParam());
  Random random(seed);
  Driver driver(seed % 3 == 0 ? Options{.metadata_ttl = {}, .negative_ttl = {}} : Options{});
  Model model;
  const std::vector<std::string> names = {"a", "b", "c-d", "\xC3\xA9", "a.txt"};
  auto path = [&] {
    std::string path = names[random.Below(names.size())];
    for (std::uint64_t depth = random.Below(3); depth > 0; --depth) path += "/" + names[random.Below(names.size())];
    return path;
  };
  auto content = [&] { return Noise(random.Below(random.Below(4) == 0 ? 40'000 : 100), random.Next()); };
  for (int step = 0; step < 400; ++step) {
    const std::string p = path(), q = path(), text = content();
    std::string what;
    Code expected, answered;
    switch (random.Below(11)) {
      case 0:
      case 1:
        what = "write " + p;
        expected = model.Write(p, text);
        answered = CodeOf(driver.Write(p, text));
        break;
      case 2:
        what = "append " + p;
        expected = model.Append(p, text);
        answered = CodeOf(driver.Append(p, text));
        break;
      case 3:
        what = "unlink " + p;
        expected = model.Unlink(p);
        answered = CodeOf(driver.Unlink(p));
        break;
      case 4:
      case 5:
        what = "mkdir " + p;
        expected = model.Mkdir(p);
        answered = CodeOf(driver.Mkdir(p));
        break;
      case 6:
        what = "rmdir " + p;
        expected = model.Rmdir(p);
        answered = CodeOf(driver.Rmdir(p));
        break;
      case 7: {
        const bool no_replace = random.Below(2) == 0;
        what = "rename " + p + " " + q;
        expected = model.Rename(p, q, no_replace);
        answered = CodeOf(driver.Rename(p, q, {.no_replace = no_replace}));
        // Where both ways are barred, either may be named.
        if (model.ParentError(p) != Model::kOk && answered == model.ParentError(q)) expected = answered;
        break;
      }
      case 8: {
        what = "read " + p;
        expected = model.FileError(p);
        auto read = driver.Read(p);
        answered = CodeOf(read);
        if (expected == Model::kOk) {
          ASSERT_EQ(read, model.files.at(p)) << what << " at step " << step;
        }
        break;
      }
      case 9: {  // another client
        what = "put " + p;
        expected = answered = Model::kOk;
        if (model.FileError(p) == Model::kOk) {
          model.files[p] = text;
          driver.Put(p, text);
          driver.PassTtl();
        }
        break;
      }
      default: {
        what = "list " + p;
        if (!model.IsDirectory(p)) continue;
        expected = Model::kOk;
        auto listed = driver.List(p);
        answered = CodeOf(listed);
        ASSERT_TRUE(listed) << listed.error().ToString();
        ASSERT_EQ(std::set<std::string>(listed->begin(), listed->end()), model.Names(p + "/")) << what;
      }
    }
    ASSERT_EQ(CodeName(answered), CodeName(expected)) << what << " at step " << step << " of seed " << seed;
  }
  driver.Remount();  // what the bucket has is what the model has
  for (const auto& [file, text] : model.files) EXPECT_EQ(driver.Object(file), text) << file;
  for (const auto& directory : model.directories) {
    auto listed = driver.List(directory);
    ASSERT_TRUE(listed) << directory << listed.error().ToString();
    EXPECT_EQ(std::set<std::string>(listed->begin(), listed->end()), model.Names(directory)) << directory;
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, TreeModelTest, testing::Range(1, 13));

}  // namespace
}  // namespace millrace::vfs
