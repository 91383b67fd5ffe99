#include "millrace/data/compact/language.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

namespace millrace::data {
namespace {

constexpr std::string_view kAdvice = "install Debian's libexttextcat-dev and libexttextcat-data";

}  // namespace

/// The functions of libexttextcat, as its header textcat.h declares them.
struct LanguageDetector::Functions {
  void* library = nullptr;
  void* (*init)(const char*, const char*) = nullptr;
  void (*done)(void*) = nullptr;
  char* (*classify)(void*, const char*, std::size_t) = nullptr;

  Functions() = default;
  Functions(const Functions&) = delete;
  Functions& operator=(const Functions&) = delete;
  ~Functions() {
    if (library != nullptr) ::dlclose(library);
  }
  template <class Function>
  void Find(Function*& function, const char* name) {
    function = reinterpret_cast<Function*>(::dlsym(library, name));
  }
};

LanguageDetector::LanguageDetector(std::unique_ptr<Functions> functions, void* handle)
    : functions_(std::move(functions)), handle_(handle) {}

LanguageDetector::~LanguageDetector() { functions_->done(handle_); }

Result<std::unique_ptr<LanguageDetector>> LanguageDetector::Open(const LanguageLibrary& library) {
  auto functions = std::make_unique<Functions>();
  const auto is_loaded = [&](const std::string& name) {
    functions->library = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    return functions->library != nullptr;
  };
  const auto loaded = std::ranges::find_if(library.libraries, is_loaded);
  if (loaded == library.libraries.end()) {
    const char* why = ::dlerror();
    return Fail(Code::kUnsupported, "a filter by language needs {}, which cannot be loaded ({}): {}",
                fmt::join(library.libraries, " or "), why != nullptr ? why : "no reason given", kAdvice);
  }
  functions->Find(functions->init, "special_textcat_Init");
  functions->Find(functions->done, "textcat_Done");
  functions->Find(functions->classify, "textcat_Classify");
  if (functions->init == nullptr || functions->done == nullptr || functions->classify == nullptr) {
    return Fail(Code::kUnsupported, "{} lacks functions that a filter by language needs: {}", *loaded, kAdvice);
  }
  const std::string list = library.models + "fpdb.conf";
  void* const handle = functions->init(list.c_str(), library.models.c_str());
  if (handle == nullptr) {
    return Fail(Code::kUnsupported, "a filter by language needs the models in {}: {}", library.models, kAdvice);
  }
  return std::unique_ptr<LanguageDetector>(new LanguageDetector(std::move(functions), handle));
}

std::vector<std::string> LanguageDetector::DetectLanguages(std::string_view text) const {
  if (text.size() < kLeastBytes) return {};
  text = text.substr(0, kMaxBytes);
  while (!text.empty() && (static_cast<unsigned char>(text.back()) & 0xC0) == 0x80) text.remove_suffix(1);
  // "[en--utf8][sco--utf8]", or a word without brackets: "SHORT", "UNKNOWN".
  const char* const answer = functions_->classify(handle_, text.data(), text.size());
  std::vector<std::string> languages;
  std::string_view rest = answer != nullptr ? answer : "";
  while (rest.starts_with('[')) {
    const std::size_t end = rest.find(']');
    languages.emplace_back(rest.substr(1, rest.find_first_of("-]") - 1));
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
  }
  return languages;
}

}  // namespace millrace::data
