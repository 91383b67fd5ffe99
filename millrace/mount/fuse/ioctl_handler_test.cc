#include "millrace/mount/fuse/handlers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string_view>

#include "millrace/object/local/mount_hints.h"

namespace millrace::mount {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

Result<std::vector<std::string>> Parse(std::string_view names) {
  object::WillOpenRequest request{.bytes = static_cast<std::uint32_t>(names.size())};
  std::memcpy(request.names, names.data(), names.size());
  return ParseWillOpen(AsBytes({reinterpret_cast<const char*>(&request), sizeof request}));
}

TEST(ParseWillOpen, ReturnsTheNamesInOrder) {
  EXPECT_THAT(*Parse({"b\0a/c\0", 6}), ElementsAre("b", "a/c"));
  EXPECT_THAT(*Parse(""), IsEmpty());
}

TEST(ParseWillOpen, RefusesNamesThatNoFileCanHave) {
  for (const std::string_view names : {std::string_view("/etc\0", 5), std::string_view("a/../b\0", 7),
                                       std::string_view("a//b\0", 5), std::string_view("\0", 1)}) {
    EXPECT_FALSE(Parse(names)) << names;
  }
}

TEST(ParseWillOpen, RefusesABrokenFormat) {
  EXPECT_FALSE(Parse("no end"));
  EXPECT_FALSE(ParseWillOpen({}));
  object::WillOpenRequest request{.bytes = sizeof request.names + 1};
  EXPECT_FALSE(ParseWillOpen(AsBytes({reinterpret_cast<const char*>(&request), sizeof request})));
}

}  // namespace
}  // namespace millrace::mount
