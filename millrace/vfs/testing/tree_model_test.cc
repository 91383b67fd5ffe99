// Random operations against a tree and against a small model of what a file tree is. They must agree in every answer.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "millrace/vfs/testing/driver.h"
#include "millrace/vfs/testing/model.h"

namespace millrace::vfs {
namespace {

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
        return {"write " + p, model_.Write(p, text), CodeOf(driver_.Write(p, text))};
      case 2:
        return {"append " + p, model_.Append(p, text), CodeOf(driver_.Append(p, text))};
      case 3:
        return {"unlink " + p, model_.Unlink(p), CodeOf(driver_.Unlink(p))};
      case 4:
      case 5:
        return {"mkdir " + p, model_.Mkdir(p), CodeOf(driver_.Mkdir(p))};
      case 6:
        return {"rmdir " + p, model_.Rmdir(p), CodeOf(driver_.Rmdir(p))};
      case 7:
      case 8: {
        const bool no_replace = random_.Below(3) == 0;
        const Code from = model_.ParentError(p), to = model_.ParentError(q);
        Step step{"rename " + p + " " + q, model_.Rename(p, q, no_replace),
                  CodeOf(driver_.Rename(p, q, {.no_replace = no_replace}))};
        // Where both ways are barred, either may be named.
        if (from != Model::kOk && step.answered == to) step.expected = to;
        return step;
      }
      case 9: {
        const auto bits = static_cast<std::uint32_t>(random_.Below(01000));
        return {"chmod " + p, model_.Chmod(p, bits), CodeOf(Chmod(p, bits))};
      }
      case 10: {
        Step step{"read " + p, model_.FileError(p), Model::kOk};
        auto read = driver_.Read(p);
        step.answered = CodeOf(read);
        if (read && step.expected == Model::kOk) {
          EXPECT_TRUE(*read == model_.files.at(p)) << step.what;
        }
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
        step.answered = CodeOf(listed);
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

class TreeModelTest : public testing::TestWithParam<int> {
 protected:
  /// Whatever renames a mount finds, their owners are gone.
  static TreeOptions OfOneMount() {
    TreeOptions options;
    options.owner_alive = [](std::string_view) { return std::optional(false); };
    return options;
  }
};

TEST_P(TreeModelTest, AnswersAsAFileTreeDoes) {
  const auto seed = static_cast<std::uint64_t>(GetParam());
  TreeOptions options = OfOneMount();
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
  TreeOptions options = OfOneMount();
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
