#include "millrace/transfer/plan/sorted_names.h"

#include <gtest/gtest.h>

#include <vector>

namespace millrace::transfer {
namespace {

TEST(SortedNames, GivesBackWhatWasAdded) {
  const std::vector<std::string> names = {"", "a", "a/b", "a/bc", "b", std::string(1024, 'x'), "é\n"};
  SortedNames sorted;
  for (const std::string& name : names) sorted.Add(name);
  std::vector<std::string> back;
  sorted.ForEach([&](const std::string& name) { back.push_back(name); });
  EXPECT_EQ(back, names);
}

}  // namespace
}  // namespace millrace::transfer
