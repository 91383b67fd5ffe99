// Streams token batches from a bucket, counts how often each token occurs, and saves the counts as a checkpoint. Then
// it reads one tensor of the checkpoint. Started again, it goes on where the newest checkpoint was made.
//
//   stream CORPUS TOKENIZER CHECKPOINTS BATCHES
//   stream 's3://corpus/texts/*.jsonl' s3://corpus/tokenizer.model s3://runs/counts 100
#include <millrace/base/error.h>
#include <millrace/base/log.h>
#include <millrace/base/threads/memory_budget.h>
#include <millrace/checkpoint/read/reader.h>
#include <millrace/checkpoint/save/writer.h>
#include <millrace/data/dataset.h>
#include <millrace/data/loader.h>
#include <millrace/object/open/open.h>
#include <millrace/tokenizer/open/open.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace {

using namespace millrace;

using Counts = std::vector<std::int64_t>;  // by token id
constexpr const char* kTensor = "model/counts";

Status ReadCounts(checkpoint::Reader& reader, Counts& counts) {
  return reader.Read(kTensor, 0, std::as_writable_bytes(std::span(counts)));
}

// Fills counts and state from the newest checkpoint. Leaves them if there is none.
Status Resume(object::Connection& connection, const std::string& checkpoints, Counts& counts, data::LoaderState& state,
              std::uint64_t& step) {
  auto reader = checkpoint::Reader::Open(connection, checkpoints);
  if (!reader && reader.error().code() == Code::kNotFound) return {};
  if (!reader) return Fail(reader.error());
  step = (*reader)->contents().step;
  state = MR_TRY(data::LoaderState::Parse((*reader)->MetaText()));
  std::printf("resumed at step %ju, sample %ju of epoch %ju\n", step, state.samples, state.epoch);
  return ReadCounts(**reader, counts);
}

Status Run(const std::string& corpus, const std::string& tokenizer_url, const std::string& checkpoints, int batches) {
  const Logger log = Logger::Stderr(LogLevel::kWarning);
  MemoryBudget budget(1 * kGiB);  // bounds all buffers
  auto connection = MR_TRY(object::OpenConnection({.log = log}));
  auto tokenizer = MR_TRY(tokenizer::OpenTokenizer(*connection, tokenizer_url, log));

  Counts counts(tokenizer->vocab_size());
  data::LoaderState state;
  std::uint64_t step = 0;
  MR_TRY(Resume(*connection, checkpoints, counts, state, step));

  data::DatasetOptions options;
  options.sources = {{.url = corpus}};
  options.sequence_length = 64;
  auto dataset = MR_TRY(data::Dataset::Open(*connection, tokenizer, options, log));
  std::printf("%ju documents, %ju samples per epoch\n", dataset->records(), dataset->samples_per_epoch());
  auto loader = MR_TRY(data::Loader::Start(dataset, budget, {.global_batch = 8, .micro_batch = 8}, state, log));
  for (int i = 0; i < batches; ++i, ++step) {
    const data::Batch batch = MR_TRY(loader->Next());  // [8, 64]
    for (data::TokenId id : batch.inputs) ++counts[id];
  }

  checkpoint::Writer::Options saving;
  saving.url = checkpoints;
  saving.log = log;
  auto writer = MR_TRY(checkpoint::Writer::Open(*connection, checkpoint::SingleRankExchange(), budget, saving));
  const checkpoint::SaveSlice slice{.name = kTensor,
                                    .meta = {checkpoint::DType::kI64, {static_cast<std::int64_t>(counts.size())}},
                                    .bytes = std::as_bytes(std::span(counts))};
  MR_TRY(writer->Save(step, {slice}, loader->state().Serialize()));  // returns when the counts are copied
  MR_TRY(writer->Wait());                                            // until they are committed

  auto reader = MR_TRY(checkpoint::Reader::Open(*connection, checkpoints, step));
  Counts read(counts.size());
  MR_TRY(ReadCounts(*reader, read));
  const auto most = std::ranges::max_element(read);
  const auto id = static_cast<data::TokenId>(most - read.begin());
  std::printf("%s: token %d \"%s\" occurs %jd times\n", reader->name().c_str(), id,
              MR_TRY(tokenizer->Piece(id)).c_str(), *most);
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: stream CORPUS TOKENIZER CHECKPOINTS BATCHES\n");
    return 2;
  }
  const Status status = Run(argv[1], argv[2], argv[3], std::atoi(argv[4]));
  if (!status) std::fprintf(stderr, "stream: %s\n", status.error().ToString().c_str());
  return status ? 0 : ToExitStatus(status.error().code());
}
