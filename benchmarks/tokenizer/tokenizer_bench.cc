// Measures how fast Millrace encodes and decodes the documents of a file. compare.py compares it with other libraries.
//
//   tokenizer_bench MODEL DOCUMENTS.jsonl [SECONDS]      {"text": …} a line; one JSON object a result
#include <ctime>
#include <thread>

#include "millrace/base/clock.h"
#include "millrace/base/files/files.h"
#include "millrace/base/hash/crc.h"
#include "millrace/base/json.h"
#include "millrace/base/text.h"
#include "millrace/tokenizer/formats/load.h"
#include "millrace/tokenizer/tokenizer.h"

namespace millrace::tokenizer {
namespace {

using Ids = std::vector<TokenId>;

class Bench {
 public:
  Bench(std::shared_ptr<const Tokenizer> tokenizer, double seconds)
      : tokenizer_(std::move(tokenizer)), seconds_(seconds) {}

  /// Repeats `pass`, which goes over `bytes` bytes, and prints the median rate.
  template <class Pass>
  void Time(std::string_view what, std::size_t bytes, std::size_t tokens, Pass pass) const {
    std::vector<double> rates, cpu_rates;
    TimePoint began = SystemClock().Now();
    while (rates.size() < 3 || Seconds(began) < seconds_) {
      TimePoint start = SystemClock().Now();
      double cpu = CpuSeconds();
      pass();
      rates.push_back(static_cast<double>(bytes) / 1e6 / Seconds(start));
      cpu_rates.push_back(static_cast<double>(bytes) / 1e6 / (CpuSeconds() - cpu));
    }
    fmt::print(
        "{}\n",
        DumpJson(
            {{"what", what}, {"mb_per_s", Median(rates)}, {"mb_per_cpu_s", Median(cpu_rates)}, {"tokens", tokens}}));
  }

  std::size_t EncodeAll(std::span<const std::string> documents) const {
    Ids ids;
    std::size_t tokens = 0;
    for (const std::string& document : documents) {
      ids.clear();
      if (!tokenizer_->Encode(document, ids)) std::abort();
      tokens += ids.size();
    }
    return tokens;
  }

  void Documents(const std::vector<std::string>& documents) const {
    std::size_t bytes = 0;
    for (const std::string& document : documents) bytes += document.size();
    std::size_t tokens = EncodeAll(documents);
    Time("documents", bytes, tokens, [&] { EncodeAll(documents); });
    std::span<const std::string> all = documents;
    Time("documents, 2 threads", 2 * bytes, 2 * tokens, [&] {
      std::jthread other([&] { EncodeAll(all); });
      EncodeAll(all);
    });
    std::string whole;
    for (const std::string& document : documents) whole += document;
    OneText("one string", whole);
    Ids ids;
    if (!tokenizer_->Encode(whole, ids)) std::abort();
    Time("decode", whole.size(), ids.size(), [&] {
      if (!tokenizer_->Decode(ids)) std::abort();
    });
  }

  void OneText(std::string_view what, const std::string& text) const {
    Ids ids;
    if (!tokenizer_->Encode(text, ids)) std::abort();
    Time(what, text.size(), ids.size(), [&] {
      ids.clear();
      if (!tokenizer_->Encode(text, ids)) std::abort();
    });
  }

 private:
  /// The median of all rates but the first, which warms up.
  static double Median(std::vector<double> rates) {
    rates.erase(rates.begin());
    std::ranges::sort(rates);
    return rates[rates.size() / 2];
  }
  /// CPU time of all threads. Rates per CPU second depend little on other work on the machine.
  static double CpuSeconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }
  static double Seconds(TimePoint since) { return std::chrono::duration<double>(SystemClock().Now() - since).count(); }

  std::shared_ptr<const Tokenizer> tokenizer_;
  double seconds_;
};

/// 1 MB each. The same bytes as compare.py's.
std::vector<std::pair<std::string, std::string>> Pathological() {
  constexpr std::size_t kSize = 1'000'000;
  static const char kBase64[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string base64, broken, letters;
  std::uint64_t state = 1;
  for (std::size_t i = 0; i < kSize; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    base64 += kBase64[state >> 58];
    broken += static_cast<char>(state >> 56);
    letters += static_cast<char>('a' + (state >> 33) % 26);
  }
  return {{"one letter", std::string(kSize, 'a')},
          {"spaces", std::string(kSize, ' ')},
          {"base64", base64},
          {"random letters", letters},
          {"invalid UTF-8", broken}};
}

Status Run(int argc, char** argv) {
  if (argc < 3) return Fail(Code::kInvalidArgument, "usage: tokenizer_bench MODEL DOCUMENTS.jsonl [SECONDS]");
  auto model = MR_TRY(ReadFile(argv[1]));
  TimePoint began = SystemClock().Now();
  auto tokenizer = MR_TRY(Load(AsBytes(model), argv[1]));
  double load_s = std::chrono::duration<double>(SystemClock().Now() - began).count();
  fmt::print("{}\n", DumpJson({{"what", "load"}, {"seconds", load_s}}));
  Bench bench(tokenizer, argc > 3 ? std::atof(argv[3]) : 2);
  if (std::string_view(argv[2]) == "pathological") {
    for (auto& [name, text] : Pathological()) bench.OneText(name, text);
    return {};
  }
  std::vector<std::string> documents;
  std::string lines = MR_TRY(ReadFile(argv[2]));
  for (std::string_view line : Split(lines, '\n')) {
    if (!line.empty()) documents.push_back(MR_TRY(JsonString(MR_TRY(ParseJson(line, argv[2])), "text")));
  }
  bench.Documents(documents);
  return {};
}

}  // namespace
}  // namespace millrace::tokenizer

int main(int argc, char** argv) {
  auto done = millrace::tokenizer::Run(argc, argv);
  if (!done) fmt::print(stderr, "tokenizer_bench: {}\n", done.error().ToString());
  return done ? 0 : 1;
}
