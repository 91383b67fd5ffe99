#include "millrace/data/compact/language.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace millrace::data {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(LanguageDetector, TellsLanguagesApart) {
  const auto opened = LanguageDetector::Open();
  if (!opened) GTEST_SKIP() << opened.error().message();
  const LanguageDetector& guesser = **opened;
  EXPECT_THAT(
      guesser.DetectLanguages("The hunters went away from the house, and the dog ran behind them into the wood."),
      Contains("en"));
  EXPECT_THAT(
      guesser.DetectLanguages("Der schnelle braune Fuchs springt über den faulen Hund und läuft in den Wald hinein."),
      ElementsAre("de"));
  EXPECT_THAT(guesser.DetectLanguages("Le renard brun saute par-dessus le chien paresseux et s'enfuit dans la forêt."),
              ElementsAre("fr"));
  EXPECT_THAT(guesser.DetectLanguages("这是一个关于语言识别的简单测试，我们希望它能够正确识别中文。"),
              ElementsAre("zh"));
  EXPECT_THAT(guesser.DetectLanguages("ok"), IsEmpty());
  std::string cut(LanguageDetector::kMaxBytes - 1, 'a');
  guesser.DetectLanguages(cut + "é");  // the limit is within a character
}

TEST(LanguageDetector, SaysWhatToInstall) {
  const auto library = LanguageDetector::Open({.libraries = {"libno-such-library.so.1"}});
  ASSERT_FALSE(library);
  EXPECT_EQ(library.error().code(), Code::kUnsupported);
  EXPECT_THAT(library.error().message(), HasSubstr("install Debian's libexttextcat-dev"));
}

TEST(LanguageDetector, TakesTheFirstLibraryThatLoads) {
  const auto opened = LanguageDetector::Open({.libraries = {"libno-such-library.so.1", "libc.so.6", "libm.so.6"}});
  ASSERT_FALSE(opened);
  EXPECT_THAT(opened.error().message(), HasSubstr("libc.so.6 lacks functions"));
}

}  // namespace
}  // namespace millrace::data
