#include "millrace/base/files/content_types.h"

#include <gtest/gtest.h>

#include "millrace/base/files/files.h"

namespace millrace {
namespace {

TEST(ContentTypes, CommonOnesAreTheSameEverywhere) {
  const ContentTypes types({});
  for (const auto& [name, type] :
       {std::pair("a/index.HTML", "text/html"), std::pair("x.mjs", "text/javascript"),
        std::pair("conf.yml", "application/yaml"), std::pair("font.woff2", "font/woff2"),
        std::pair("data.tar.gz", "application/gzip"), std::pair(".hidden.toml", "application/toml")}) {
    EXPECT_EQ(types.Of(name), type) << name;
  }
  for (const char* name : {"", "plain", "a.b/plain", "x.", "x.unheard-of"}) EXPECT_EQ(types.Of(name), "") << name;
}

TEST(ContentTypes, TablesAddWhatIsNotCommon) {
  const TempDir folder = std::move(*TempDir::Create());
  const auto globs = folder.path() / "globs2", mime = folder.path() / "mime.types";
  ASSERT_TRUE(WriteFileAtomic(globs, AsBytes("# weight:type:glob\n80:text/x-high:*.Wgt\n50:text/x-low:*.wgt\n"
                                             "50:text/wrong:*.html\n50:text/x-literal:makefile\n50:text/x-multi:*.a.b\n"
                                             "50:bad type\x1b:*.evil\n50:text/x-cs:*.cs:cs\nnonsense\n")));
  ASSERT_TRUE(WriteFileAtomic(mime, AsBytes("# type extensions\napplication/x-one\tone uno \ntext/x-later wgt\nlonely\n"
                                            "no-slash evil\n")));
  const ContentTypes types({globs, folder.path() / "absent", mime});
  EXPECT_EQ(types.Of("a.wgt"), "text/x-high");
  EXPECT_EQ(types.Of("a.html"), "text/html");
  EXPECT_EQ(types.Of("a.cs"), "text/x-cs");
  EXPECT_EQ(types.Of("a.UNO"), "application/x-one");
  for (const char* name : {"makefile", "x.b", "x.evil", "x.lonely"}) EXPECT_EQ(types.Of(name), "") << name;
}

}  // namespace
}  // namespace millrace
