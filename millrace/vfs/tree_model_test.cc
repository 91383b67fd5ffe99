// Random operations against a tree and against a small model of what a file tree is. They must agree in every answer.
#include <gtest/gtest.h>

#include <algorithm>
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
  std::map<std::string, std::uint32_t> permissions;  ///< of files and directories that have others than the usual

  bool operator==(const Model&) const = default;

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

template <class T>
Code Outcome(const Result<T>& result) {
  return result ? Model::kOk : result.error().code();
}

/// What a fresh mount shows.
Model Snapshot(Driver& driver) {
  driver.PassTtl();
  driver.clock.Advance(std::chrono::minutes(2));  // renames that were cut off count as abandoned
  driver.Remount();
  Model model;
  auto visit = [&](auto& self, const std::string& directory) -> void {
    auto opened = driver.tree->OpenDirectory(*driver.Walk(directory));
    std::vector<std::pair<std::string, Attributes>> entries;
    Status read = Driver::ReadToEnd(**opened, [&](const DirectoryEntry& entry) {
      entries.emplace_back(directory + std::string(entry.name), entry.entry.attributes);
    });
    EXPECT_TRUE(read) << read.error().ToString();
    for (const auto& [path, attributes] : entries) {
      const bool is_directory = attributes.kind == Kind::kDirectory;
      if (attributes.permissions != (is_directory ? 0755u : 0644u)) model.permissions[path] = attributes.permissions;
      if (is_directory) {
        model.directories.insert(path + "/");
        self(self, path + "/");
      } else {
        model.files[path] = driver.Object(path);
      }
    }
  };
  visit(visit, "");
  return model;
}

std::string Describe(const Model& model) {
  std::string text;
  for (const auto& [path, content] : model.files) text += fmt::format("{} ({} bytes) ", path, content.size());
  for (const auto& path : model.directories) text += path + " ";
  for (const auto& [path, bits] : model.permissions) text += fmt::format("{}={:o} ", path, bits);
  return text;
}

bool Contains(const Model& larger, const Model& smaller) {
  auto contains = [](const auto& a, const auto& b) {
    return std::ranges::all_of(b, [&](const auto& item) { return std::ranges::find(a, item) != a.end(); });
  };
  return contains(larger.files, smaller.files) && contains(larger.directories, smaller.directories) &&
         contains(larger.permissions, smaller.permissions);
}

/// One random operation, done to both; what it was, what was expected and what was answered.
struct Step {
  std::string what;
  Code expected = Model::kOk, answered = Model::kOk;
};

class Actor {
 public:
  Actor(Driver& driver, Model& model, std::uint64_t seed) : driver_(driver), model_(model), random_(seed) {}

  Step Act() {
    const std::string p = Path(), q = Path(), text = Content();
    switch (random_.Below(13)) {
      case 0:
      case 1:
        return {"write " + p, model_.Write(p, text), Outcome(driver_.Write(p, text))};
      case 2:
        return {"append " + p, model_.Append(p, text), Outcome(driver_.Append(p, text))};
      case 3:
        return {"unlink " + p, model_.Unlink(p), Outcome(driver_.Unlink(p))};
      case 4:
      case 5:
        return {"mkdir " + p, model_.Mkdir(p), Outcome(driver_.Mkdir(p))};
      case 6:
        return {"rmdir " + p, model_.Rmdir(p), Outcome(driver_.Rmdir(p))};
      case 7:
      case 8: {
        const bool no_replace = random_.Below(3) == 0;
        const Code from = model_.ParentError(p), to = model_.ParentError(q);
        Step step{"rename " + p + " " + q, model_.Rename(p, q, no_replace),
                  Outcome(driver_.Rename(p, q, {.no_replace = no_replace}))};
        // Where both ways are barred, either may be named.
        if (from != Model::kOk && step.answered == to) step.expected = to;
        return step;
      }
      case 9: {
        const auto bits = static_cast<std::uint32_t>(random_.Below(01000));
        return {"chmod " + p, model_.Chmod(p, bits), Outcome(Chmod(p, bits))};
      }
      case 10: {
        Step step{"read " + p, model_.FileError(p), Model::kOk};
        auto read = driver_.Read(p);
        step.answered = Outcome(read);
        if (read && step.expected == Model::kOk) EXPECT_TRUE(*read == model_.files.at(p)) << step.what;
        return step;
      }
      case 11: {  // another client; what it writes has no attributes
        if (model_.FileError(p) == Model::kOk) {
          if (!driver_.tree->FlushAll()) return {"put " + p};  // what is published last wins
          model_.files[p] = text;
          model_.permissions.erase(p);
          driver_.Put(p, text);
          driver_.PassTtl();
        }
        return {"put " + p};
      }
      default: {
        Step step{"list " + p};
        if (!model_.IsDirectory(p)) return step;
        auto listed = driver_.List(p);
        step.answered = Outcome(listed);
        if (listed) {
          EXPECT_EQ(std::set<std::string>(listed->begin(), listed->end()), model_.Names(p + "/")) << step.what;
        }
        return step;
      }
    }
  }

 private:
  std::string Path() {
    static const std::vector<std::string> kNames = {"a", "b", "c-d", "\xC3\xA9", "a.txt"};
    std::string path = kNames[random_.Below(kNames.size())];
    for (std::uint64_t depth = random_.Below(3); depth > 0; --depth) path += "/" + kNames[random_.Below(kNames.size())];
    return path;
  }
  std::string Content() { return Noise(random_.Below(random_.Below(4) == 0 ? 40'000 : 100), random_.Next()); }
  Status Chmod(const std::string& path, std::uint32_t bits) {
    MR_TRY(driver_.tree->SetAttributes(MR_TRY(driver_.Walk(path)), {.permissions = bits}, nullptr));
    return {};
  }

  Driver& driver_;
  Model& model_;
  Random random_;
};

class TreeModelTest : public testing::TestWithParam<int> {};

TEST_P(TreeModelTest, AnswersAsAFileTreeDoes) {
  const auto seed = static_cast<std::uint64_t>(GetParam());
  Options options;
  if (seed % 3 == 0) options.metadata_ttl = options.negative_ttl = {};
  options.close_async = seed % 2 == 0;
  Driver driver(std::move(options));
  Model model;
  Actor actor(driver, model, seed);
  for (int i = 0; i < 400; ++i) {
    const Step step = actor.Act();
    ASSERT_EQ(CodeName(step.answered), CodeName(step.expected)) << step.what << " at step " << i << " of seed " << seed;
    ASSERT_FALSE(HasFailure()) << "at step " << i;
  }
  EXPECT_EQ(Describe(Snapshot(driver)), Describe(model));
  EXPECT_TRUE(Snapshot(driver) == model) << "contents differ";
}

TEST_P(TreeModelTest, AFaultLeavesTheOldOrTheNewTree) {
  const auto seed = static_cast<std::uint64_t>(GetParam()) + 1000;
  Random random(seed);
  Options options;
  options.close_async = seed % 2 == 0;
  Driver driver(std::move(options));
  Model model;
  Actor actor(driver, model, seed);
  for (int i = 0; i < 300; ++i) {
    const Model before = model;
    if (random.Below(3) == 0) {
      driver.store->Add({.operation = {},
                         .key_prefix = {},
                         .skip = static_cast<int>(random.Below(12)),
                         .times = random.Below(2) == 0 ? -1 : 1,
                         .probability = 1.0,
                         .fault = {.code = Code::kUnavailable, .after_effect = random.Below(2) == 0}});
    }
    const Step step = actor.Act();
    driver.store->Clear();
    if (step.answered == step.expected && step.answered != Model::kOk) continue;
    if (step.answered == Model::kOk && random.Below(4) != 0) continue;
    Model now = Snapshot(driver);
    // A file that is cut off between its copy and the removal of its old name has both for a while.
    const bool old_name_left = step.what.starts_with("rename") && !(now == before) && Contains(now, model);
    if (step.answered == Model::kOk) {
      ASSERT_EQ(Describe(now), Describe(model)) << step.what << " at step " << i << " of seed " << seed;
    } else {
      ASSERT_TRUE(now == before || now == model || old_name_left)
          << step.what << " at step " << i << " of seed " << seed << "\n  left   " << Describe(now) << "\n  before "
          << Describe(before) << "\n  after  " << Describe(model);
    }
    model = std::move(now);
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, TreeModelTest, testing::Range(1, 13));

}  // namespace
}  // namespace millrace::vfs
