#include "millrace/transfer/plan/sync_plan.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "millrace/base/hash/random.h"

namespace millrace::transfer {
namespace {

WallTime At(int seconds) { return WallTime(std::chrono::seconds(1'000'000 + seconds)); }

class ListStream final : public ItemStream {
 public:
  explicit ListStream(std::vector<Item> items) : items_(std::move(items)) {}
  Result<std::optional<Item>> Next() override {
    if (at_ == items_.size()) return std::nullopt;
    return items_[at_++];
  }

 private:
  std::vector<Item> items_;
  std::size_t at_ = 0;
};

struct File {
  std::uint64_t size;
  int modified;
};
using Files = std::map<std::string, File>;

ListStream Stream(const Files& files) {
  std::vector<Item> items;
  for (const auto& [name, file] : files) {
    items.push_back({name, {.key = name, .size = file.size, .modified = At(file.modified)}});
  }
  return ListStream(std::move(items));
}

std::string Plan(const Files& source, const Files& destination, const SyncRules& rules) {
  ListStream from = Stream(source), to = Stream(destination);
  std::string plan;
  EXPECT_TRUE(PlanSync(from, to, rules, [&](SyncAction action) -> Status {
    const char* kinds[] = {"+", "-", "="};
    plan += kinds[static_cast<int>(action.operation)] + action.item.name + " ";
    return {};
  }));
  return plan;
}

TEST(PlanSync, CopiesWhatIsMissingDifferentOrOlder) {
  Files source = {{"a", {1, 5}}, {"b", {2, 5}}, {"c", {3, 5}}, {"d", {4, 5}}};
  Files destination = {{"b", {2, 9}}, {"c", {9, 9}}, {"d", {4, 1}}, {"x", {1, 1}}};
  EXPECT_EQ(Plan(source, destination, {}), "+a =b +c +d ");
  EXPECT_EQ(Plan(source, destination, {.delete_extra = true}), "+a =b +c +d -x ");
  EXPECT_EQ(Plan(source, destination, {.size_only = true}), "+a =b +c =d ");
  EXPECT_EQ(Plan(source, destination, {.exact_timestamps = true}), "+a +b +c +d ");
  EXPECT_EQ(Plan(source, source, {.exact_timestamps = true}), "=a =b =c =d ");
}

TEST(PlanSync, FilteredNamesAreLeftAlone) {
  Files source = {{"a.txt", {1, 5}}, {"b.bin", {1, 5}}}, destination = {{"c.bin", {1, 5}}, {"d.txt", {1, 5}}};
  SyncRules rules{.delete_extra = true, .filter = NameFilter({{.includes = true, .pattern = "*.txt"}})};
  EXPECT_EQ(Plan(source, destination, rules), "+a.txt -d.txt ");
}

TEST(PlanSync, SubSecondsDoNotMakeAFileNewer) {
  object::ObjectInfo local{.size = 1, .modified = At(5) + std::chrono::milliseconds(900)};
  object::ObjectInfo remote{.size = 1, .modified = At(5)};
  EXPECT_FALSE(NeedsCopy(local, remote, {}));
  EXPECT_FALSE(NeedsCopy(local, remote, {.exact_timestamps = true}));
}

TEST(PlanSync, AgreesWithAModelOnRandomTrees) {
  Random random(11);
  for (int round = 0; round < 500; ++round) {
    Files source, destination;
    for (Files* files : {&source, &destination}) {
      for (int i = 0; i < 8; ++i) {
        std::string name = std::string(1, "ab/"[random.Below(2)]) + std::string(1, "-/.0"[random.Below(4)]) + "x";
        (*files)[name] = {random.Below(2), static_cast<int>(random.Below(3))};
      }
    }
    std::set<std::string> names;
    for (const auto& [name, file] : source) names.insert(name);
    for (const auto& [name, file] : destination) names.insert(name);
    std::string expected;
    for (const std::string& name : names) {
      auto have = source.find(name), there = destination.find(name);
      if (have == source.end()) {
        expected += "-" + name + " ";
      } else {
        bool same = there != destination.end() && have->second.size == there->second.size &&
                    have->second.modified <= there->second.modified;
        expected += (same ? "=" : "+") + name + " ";
      }
    }
    ASSERT_EQ(Plan(source, destination, {.delete_extra = true}), expected);
  }
}

TEST(PlanSync, AnEmptySourceDeletesNothingUnlessAllowed) {
  Files there = {{"a", {1, 1}}};
  ListStream from = Stream({}), to = Stream(there);
  Status planned = PlanSync(from, to, {.delete_extra = true}, [](const SyncAction&) -> Status {
    ADD_FAILURE() << "nothing is to be done";
    return {};
  });
  ASSERT_FALSE(planned);
  EXPECT_EQ(planned.error().code(), Code::kNotFound);
  EXPECT_EQ(Plan({}, there, {.delete_extra = true, .allow_empty_source = true}), "-a ");
  EXPECT_EQ(Plan({}, {}, {.delete_extra = true}), "");
}

TEST(PlanSync, AFolderThatTheSourceHasKeepsItsMark) {
  EXPECT_EQ(Plan({{"d/a", {1, 1}}}, {{"d/", {0, 1}}, {"e/", {0, 1}}}, {.delete_extra = true}), "+d/a -e/ ");
}

TEST(PlanSync, RefusesDisorder) {
  ListStream from({{"b", {}}, {"a", {}}}), to({});
  Status planned = PlanSync(from, to, {}, [](SyncAction) -> Status { return {}; });
  ASSERT_FALSE(planned);
  EXPECT_EQ(planned.error().code(), Code::kUnsupported);
}

}  // namespace
}  // namespace millrace::transfer
