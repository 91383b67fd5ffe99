// millrace tokenizer encode: one thread per core encodes batches of lines, and one thread writes them in order.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <functional>
#include <future>
#include <memory>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "apps/millrace/data/data_flags.h"
#include "apps/millrace/data/input_lines.h"
#include "apps/millrace/data/tokenizer_commands.h"
#include "millrace/base/json.h"
#include "millrace/base/process/cores.h"
#include "millrace/base/threads/channel.h"
#include "millrace/base/threads/task_scope.h"
#include "millrace/tokenizer/open/open.h"
#include "millrace/tokenizer/tokenizer.h"

namespace millrace::cli {
namespace {

using tokenizer::TokenId;
using tokenizer::Tokenizer;

constexpr std::size_t kBatchBytes = 256 * 1024;  // a guess: passing a batch to a thread costs little beside encoding it

/// Lines that one encoder takes at a time.
struct LineBatch {
  std::string text;                ///< each line ends with a newline, except perhaps the last
  std::uint64_t first_number = 1;  ///< number of the first line, for messages
};

/// The output of a batch, up to the first line that failed.
struct EncodedBatch {
  std::string output;
  Status status;
};

/// Encodes lines and writes their ids as text. Immutable; any thread.
class LineEncoder {
 public:
  LineEncoder(std::shared_ptr<const Tokenizer> tokenizer, bool json, bool specials)
      : tokenizer_(std::move(tokenizer)), json_(json) {
    if (!specials) return;
    bos_ = tokenizer_->bos();
    eos_ = tokenizer_->eos();
  }

  EncodedBatch Encode(const LineBatch& batch) const {
    EncodedBatch encoded;
    encoded.output.reserve(2 * batch.text.size());
    std::vector<TokenId> ids;
    std::uint64_t number = batch.first_number;
    for (std::string_view rest = batch.text; !rest.empty() && encoded.status; ++number) {
      const std::size_t newline = std::min(rest.find('\n'), rest.size());
      ids.clear();
      encoded.status = EncodeLine(rest.substr(0, newline), number, ids);
      if (encoded.status) Append(ids, encoded.output);
      rest.remove_prefix(std::min(newline + 1, rest.size()));
    }
    return encoded;
  }

 private:
  Status EncodeLine(std::string_view line, std::uint64_t number, std::vector<TokenId>& ids) const {
    std::string field;
    if (json_) {
      const Json object = MR_TRY(ParseJson(line, fmt::format("line {}", number)));
      auto text = JsonString(object, "text");
      if (!text) return Fail(text.error().Context(fmt::format("line {}", number)));
      field = *std::move(text);
      line = field;
    }
    if (bos_ != tokenizer::kNoToken) ids.push_back(bos_);
    MR_TRY(tokenizer_->Encode(line, ids));
    if (eos_ != tokenizer::kNoToken) ids.push_back(eos_);
    return {};
  }

  void Append(const std::vector<TokenId>& ids, std::string& output) const {
    constexpr std::size_t kMaxBytes = 12;  // of a number and its separator
    constexpr std::string_view kBegin = "{\"ids\":[", kEnd = "]}";
    const std::size_t before = output.size();
    output.resize_and_overwrite(before + kBegin.size() + kEnd.size() + 1 + kMaxBytes * ids.size(),
                                [&](char* buffer, std::size_t size) {
                                  char *at = buffer + before, *end = buffer + size;
                                  if (json_) at = std::ranges::copy(kBegin, at).out;
                                  const char* first = at;
                                  for (const TokenId id : ids) {
                                    if (at != first) *at++ = json_ ? ',' : ' ';
                                    at = std::to_chars(at, end, id).ptr;
                                  }
                                  if (json_) at = std::ranges::copy(kEnd, at).out;
                                  *at++ = '\n';
                                  return at - buffer;
                                });
  }

  const std::shared_ptr<const Tokenizer> tokenizer_;
  const bool json_;
  TokenId bos_ = tokenizer::kNoToken, eos_ = tokenizer::kNoToken;
};

Status WriteOutput(std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::write(STDOUT_FILENO, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return Fail(ErrnoError(errno, "writing to standard output"));
    text.remove_prefix(static_cast<std::size_t>(n));
  }
  return {};
}

/// Writes the output of batches in order, on a thread of its own, until one fails.
class OrderedWriter {
 public:
  /// `on_failure` is called on that thread.
  OrderedWriter(std::size_t most, std::function<void()> on_failure) : batches_(most) {
    scope_.Spawn("write", [this, on_failure = std::move(on_failure)](std::stop_token) {
      while (status_) {
        auto batch = batches_.Pop();
        if (!batch) return;
        const EncodedBatch encoded = batch->get();
        status_ = WriteOutput(encoded.output);
        if (status_) status_ = encoded.status;
      }
      batches_.Close();
      on_failure();
    });
  }
  ~OrderedWriter() { batches_.Close(); }
  OrderedWriter(const OrderedWriter&) = delete;
  OrderedWriter& operator=(const OrderedWriter&) = delete;

  /// Blocks while the limit of batches is under way. Returns false after a failure.
  bool Add(std::future<EncodedBatch> batch) { return batches_.Push(std::move(batch)); }
  /// Waits until all is written. Returns the failure, if there was one.
  Status Finish() {
    batches_.Close();
    scope_.Join();
    return status_;
  }

 private:
  Channel<std::future<EncodedBatch>> batches_;
  Status status_;  // only the thread uses it until it is joined
  TaskScope scope_;
};

}  // namespace

Status EncodeInput(const Context& context, const EncodeOptions& options) {
  auto connection = MR_TRY(context.Connect());
  auto tokenizer = MR_TRY(tokenizer::OpenTokenizer(*connection, options.model, context.log(), {.stop = context.stop}));
  const LineEncoder encoder(std::move(tokenizer), context.globals.json, options.specials);
  const int threads = UsableCores();
  const auto most = 2 * static_cast<std::size_t>(threads);
  std::stop_source failed;
  const std::stop_callback relay(context.stop, [&] { failed.request_stop(); });
  OrderedWriter writer(most, [&] { failed.request_stop(); });
  ThreadPool pool("encode", threads, most);  // destroyed before the objects that its tasks use
  InputLines input(failed.get_token());
  auto feed = [&]() -> Status {
    LineBatch batch;
    while (MR_TRY(input.NextBatch(kBatchBytes, batch.text))) {
      const auto lines = static_cast<std::uint64_t>(std::ranges::count(batch.text, '\n'));
      const std::uint64_t next = batch.first_number + lines;
      std::promise<EncodedBatch> promise;
      auto future = promise.get_future();
      pool.Submit([&encoder, promise = std::move(promise), one = std::exchange(batch, {})]() mutable {
        promise.set_value(encoder.Encode(one));
      });
      batch.first_number = next;
      if (!writer.Add(std::move(future))) return {};
    }
    return {};
  };
  const Status fed = feed();
  MR_TRY(writer.Finish());
  return fed;
}

}  // namespace millrace::cli
