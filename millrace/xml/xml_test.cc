#include "millrace/xml/xml.h"

#include <gtest/gtest.h>

#include "millrace/xml/document.h"

namespace millrace::xml {
namespace {

TEST(Xml, WhatIsWrittenIsReadBack) {
  std::string text = "a <b> & \"c\" 'd'\r\n\té\x01 ";
  std::string document = Writer("Root").Open("In").Text("T", text).Number("N", 7).Bool("B", true).Close("In").Finish();
  auto parsed = Document::Parse(document);
  ASSERT_TRUE(parsed) << parsed.error().ToString();
  EXPECT_EQ(LocalName(parsed->root()), "Root");
  EXPECT_EQ(parsed->root().attribute("xmlns").value(), kS3Namespace);
  EXPECT_EQ(parsed->root().child("In").child_value("T"), text);
  EXPECT_STREQ(parsed->root().child("In").child_value("N"), "7");
  EXPECT_STREQ(parsed->root().child("In").child_value("B"), "true");
}

TEST(Xml, NamesLoseTheirPrefix) {
  auto parsed = Document::Parse("<s3:Delete xmlns:s3='x'/>");
  ASSERT_TRUE(parsed);
  EXPECT_EQ(LocalName(parsed->root()), "Delete");
}

TEST(Xml, WhatIsNoXmlIsCorrupt) {
  for (std::string_view bad : {"", "text", "<a>", "<a></b>", "<html><br></html>"}) {
    auto parsed = Document::Parse(bad);
    ASSERT_FALSE(parsed) << bad;
    EXPECT_EQ(parsed.error().code(), Code::kCorrupt);
  }
}

TEST(Xml, SomeTextsFitNoDocument) {
  EXPECT_TRUE(Fits("a\t\r\nü中"));
  for (std::string_view bad : {"\x01", "\x1f", "\xEF\xBF\xBF"}) EXPECT_FALSE(Fits(bad));
}

TEST(Xml, Quotes) {
  EXPECT_EQ(Unquote("\"abc\""), "abc");
  EXPECT_EQ(Unquote("abc"), "abc");
  EXPECT_EQ(Unquote("\""), "\"");
}

}  // namespace
}  // namespace millrace::xml
