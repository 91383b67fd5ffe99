// Guesses the languages of texts with libexttextcat, which is loaded at run time: Debian's packages libexttextcat-dev
// and libexttextcat-data. The package of the library alone has other names in other releases.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/result.h"

namespace millrace::data {

/// Stands for the language of texts that are too short to classify, or resemble too many languages.
inline constexpr std::string_view kUnknownLanguage = "unknown";

/// The place of the library and its models.
struct LanguageLibrary {
  /// Names of the library; the first one that loads is taken. Debian's sid has the second one, with the same functions.
  std::vector<std::string> libraries = {"libexttextcat-2.0.so.0", "libexttextcat-2.0.so.1"};
  std::string models = "/usr/share/libexttextcat/";  ///< a folder, with its slash
};

/// Compares frequencies of character n-grams with those of about 160 languages (Cavnar and Trenkle 1994). The result
/// depends on the text and the library's version alone. One thread; other threads have guessers of their own.
class LanguageDetector {
 public:
  /// How much of a text is read. Reading more rarely changes the result.
  static constexpr std::size_t kMaxBytes = 4096;
  /// Texts below this size are not judged: the library would name some language at random.
  static constexpr std::size_t kLeastBytes = 24;

  /// Errors: kUnsupported without the library or its models; the message says what to install.
  static Result<std::unique_ptr<LanguageDetector>> Open(const LanguageLibrary& library = {});
  ~LanguageDetector();
  LanguageDetector(const LanguageDetector&) = delete;
  LanguageDetector& operator=(const LanguageDetector&) = delete;

  /// Returns the languages that the text may be of, the likeliest first, as ISO 639 codes: "en", "sco". Languages of
  /// nearly the same n-grams come together. Empty if the text is too short to classify, or resembles too many
  /// languages.
  std::vector<std::string> DetectLanguages(std::string_view text) const;

 private:
  struct Functions;
  LanguageDetector(std::unique_ptr<Functions> functions, void* handle);
  const std::unique_ptr<Functions> functions_;
  void* const handle_;
};

}  // namespace millrace::data
