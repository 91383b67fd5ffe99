// Compares the loader with its upper bound: SentencePiece, which encodes the same documents from memory.
//
//   loader_bench TOKENIZER URL TEMPLATE [SECONDS]      e.g. model s3://corpus/*.jsonl '{text}'
#include <sentencepiece_processor.h>
#include <sys/resource.h>

#include <cstdio>
#include <cstdlib>

#include "millrace/base/files/files.h"
#include "millrace/data/documents/document_reader.h"
#include "millrace/data/loader.h"
#include "millrace/object/open/open.h"
#include "millrace/tokenizer/formats/load.h"

namespace millrace::data {
namespace {

double Seconds(TimePoint since) { return std::chrono::duration<double>(SystemClock().Now() - since).count(); }

/// CPU time of all threads. Rates per CPU second depend little on other work on the machine.
double CpuSeconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  auto seconds = [](timeval time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

/// Tokens per CPU second of the library itself, documents in memory.
Result<double> LibraryRate(object::Connection& connection, std::span<const DataSource> sources,
                           const RecordTemplate& form, std::string_view model, double seconds) {
  sentencepiece::SentencePieceProcessor library;
  if (!library.LoadFromSerializedProto(model).ok()) return Fail(Code::kInvalidArgument, "not a SentencePiece model");
  auto reader = MR_TRY(DocumentReader::Open(connection, sources, form));
  std::vector<std::string> documents;
  std::uint64_t held = 0;
  for (std::string document; held < 256 * kMiB && MR_TRY(reader.Next(document));) {
    held += document.size();
    documents.push_back(document);
  }
  std::uint64_t tokens = 0;
  TimePoint began = SystemClock().Now();
  double cpu = CpuSeconds();
  for (std::size_t i = 0; Seconds(began) < seconds; ++i) {
    std::vector<int> ids;
    if (!library.Encode(documents[i * 7919 % documents.size()], &ids).ok()) return Fail(Code::kInternal, "encoding");
    tokens += ids.size();
  }
  return static_cast<double>(tokens) / (CpuSeconds() - cpu);
}

Status Run(int argc, char** argv) {
  if (argc < 4) return Fail(Code::kInvalidArgument, "usage: loader_bench TOKENIZER URL TEMPLATE [SECONDS]");
  double seconds = argc > 4 ? std::atof(argv[4]) : 5;
  auto model = MR_TRY(ReadFile(argv[1]));
  std::shared_ptr<const tokenizer::Tokenizer> tokenizer = MR_TRY(tokenizer::Load(AsBytes(model), argv[1]));
  auto connection = MR_TRY(object::OpenConnection({}));
  std::vector<DataSource> sources = {{argv[2], 1.0}};
  auto form = MR_TRY(RecordTemplate::Parse(argv[3]));
  double bound = MR_TRY(LibraryRate(*connection, sources, form, model, seconds));
  fmt::print("sentencepiece alone: {:.0f} tokens per CPU second\n", bound);
  for (int threads : {1, 2}) {
    for (auto [length, mode] :
         {std::pair{256, SequenceMode::kPack}, {2048, SequenceMode::kPack}, {2048, SequenceMode::kPad}}) {
      TimePoint opening = SystemClock().Now();
      auto dataset = MR_TRY(Dataset::Open(
          *connection, tokenizer,
          {.sources = sources, .template_text = argv[3], .sequence_length = length, .mode = mode, .threads = threads},
          {}));
      double opened = Seconds(opening);
      MemoryBudget budget(512 * kMiB);
      TimePoint began = SystemClock().Now();
      double cpu = CpuSeconds();
      auto loader = MR_TRY(Loader::Start(dataset, budget, {.threads = threads}, {}));
      std::uint64_t tokens = 0, samples = 0;
      double first = 0;
      while (Seconds(began) < seconds) {
        Batch batch = MR_TRY(loader->Next());
        if (samples == 0) first = Seconds(began);
        tokens += batch.loss_tokens;
        samples += batch.rows;
      }
      double wall = Seconds(began);
      double per_cpu = static_cast<double>(tokens) / (CpuSeconds() - cpu);
      fmt::print(
          "{} {:4}, {} threads: {:9.0f} tokens/s, {:6.0f} samples/s; {:.2f} of sentencepiece per CPU second; opened in "
          "{:.0f} ms, first batch after {:.0f} ms, {} MiB of budget\n",
          mode == SequenceMode::kPack ? "pack" : "pad ", length, threads, static_cast<double>(tokens) / wall,
          samples / wall, per_cpu / bound, opened * 1e3, first * 1e3, budget.peak() / kMiB);
    }
  }
  return {};
}

}  // namespace
}  // namespace millrace::data

int main(int argc, char** argv) {
  auto done = millrace::data::Run(argc, argv);
  if (done) return 0;
  std::fprintf(stderr, "loader_bench: %s\n", done.error().ToString().c_str());
  return 1;
}
