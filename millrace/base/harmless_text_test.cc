#include "millrace/base/harmless_text.h"

#include <gtest/gtest.h>

#include "millrace/base/text.h"

namespace millrace {
namespace {

TEST(HarmlessText, KeepsTexts) {
  for (const char* text : {"", "plain\ttext\nof lines", "Mühle 水車 🏞 e\u0301 \u200F\u200D"}) {
    EXPECT_EQ(HarmlessText(text), text);
  }
  EXPECT_EQ(HarmlessText("a\r\nb"), "a\nb");
}

TEST(HarmlessText, ShowsControls) {
  EXPECT_EQ(HarmlessText("\x1b[31mred\x07"), "␛[31mred␇");
  EXPECT_EQ(HarmlessText("\x1b]52;c;cm0gLXJm\x07"), "␛]52;c;cm0gLXJm␇");  // would set the clipboard
  EXPECT_EQ(HarmlessText("over\rwritten\b\x7f"), "over␍written␈␡");
  EXPECT_EQ(HarmlessText(std::string_view("nul\0", 4)), "nul␀");
}

TEST(HarmlessText, ReplacesWhatDeceives) {
  EXPECT_EQ(HarmlessText("\u009B31m \u0085"), "\uFFFD31m \uFFFD");  // CSI and NEL as one character
  EXPECT_EQ(HarmlessText("\u202Egnp.exe\u202C \u2066x\u2069"), "\uFFFDgnp.exe\uFFFD \uFFFDx\uFFFD");
  EXPECT_EQ(HarmlessText("a\u2028b"), "a\uFFFDb");
  EXPECT_EQ(HarmlessText("\x9b\xc0\x80\xed\xa0\x80\xf5"), "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD");
}

TEST(HarmlessText, WhateverTheBytesTheResultIsHarmlessUtf8) {
  for (int first = 0; first < 256; ++first) {
    for (int second = 0; second < 256; ++second) {
      const std::string bytes = {static_cast<char>(first), static_cast<char>(second), static_cast<char>(0x80)};
      const std::string shown = HarmlessText(bytes);
      ASSERT_TRUE(IsValidUtf8(shown));
      for (std::size_t at = 0, length = 0; at < shown.size(); at += length) {
        const char32_t c = CharacterAt(shown, at, length);
        ASSERT_TRUE(c == '\n' || c == '\t' || (c >= 0x20 && c < 0x7F) || c >= 0xA0) << first << " " << second;
      }
    }
  }
}

}  // namespace
}  // namespace millrace
