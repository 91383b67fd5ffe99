#include "millrace/base/files/mapped_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "millrace/base/files/files.h"

namespace millrace {
namespace {

TEST(MappedFile, HasTheBytesOfTheFile) {
  const TempDir folder = *TempDir::Create();
  const auto path = folder.path() / "file";
  for (const std::string& text : {std::string(), std::string("x"), std::string(100'000, 'y')}) {
    std::ofstream(path) << text;
    auto opened = [&] {
      const UniqueFd fd = *OpenFile(path, O_RDONLY);
      return *MappedFile::Open(fd.get(), "file");
    }();
    const MappedFile moved = std::move(opened);
    EXPECT_TRUE(AsText(moved.bytes()) == text) << "the descriptor is closed, and the mapping was moved";
    EXPECT_TRUE(opened.bytes().empty());
  }
  EXPECT_FALSE(MappedFile::Open(-1, "nothing"));
}

}  // namespace
}  // namespace millrace
