#include "millrace/s3d/fault.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <limits>
#include <optional>

#include "millrace/base/hash/random.h"
#include "millrace/base/text.h"

namespace millrace::s3d {

namespace {

constexpr std::string_view kGrammar =
    R"(SPEC is rules separated by ';'. A rule is an effect and, separated by ',', whom it befalls:

  latency=50ms, latency=10ms..200ms   wait before the operation
  bandwidth=10MB                      bytes a second, for each request, each way
  error=500, error=503                answer InternalError, SlowDown; other statuses likewise; the operation is not done
  error=ExpiredToken                  answer an error of S3 by its code; the operation is not done
  white-space=30s                     send white space so long before the answer to a copy or a completion, as S3 does
  slowdown                            the same as error=503
  truncate, truncate=64KiB            end the answer half-way through its body, or after so many bytes, in good order
  reset=request                       reset the connection before the operation
  reset=answer                        do the operation, then reset the connection instead of answering
  reset=body, reset=64KiB             reset the connection half-way through the answer's body, or after so many bytes
  unconditional                       ignore If-Match and If-None-Match of writes, as some services do
  damage                              turn a bit in the middle of the request's body, or else of the answer's
  seed=7                              a rule of its own: another sequence of decisions

  op=GetObject|PutObject              only these operations (S3's names)
  bucket=NAME  key=PREFIX             only this bucket, only keys with this prefix (percent-encode ',' and ';')
  rate=5%                             only so many of the requests, picked by the seed
  skip=N  count=N                     not the first N of them; N times at most

Example: --fault "latency=5ms..20ms; error=503,op=GetObject,rate=2%; reset=answer,op=PutObject,skip=10,count=1"

Effects that make the endpoint odd, as a server or a proxy was seen to be (in parentheses):

)";

}  // namespace

std::string FaultHelp() {
  std::string help(kGrammar);
  for (const OddityRow& row : OddityTable()) help += fmt::format("  {:<20} {} ({})\n", row.name, row.what, row.source);
  help.pop_back();
  return help;
}

struct FaultPlan::Rule {
  enum class Effect { kLatency, kWhiteSpace, kBandwidth, kError, kDisconnect, kUnconditional, kDamage, kOddity };
  Effect effect = Effect::kLatency;
  Duration least{}, most{};
  std::uint64_t bytes_per_second = 0;
  std::optional<S3Error> error;
  Oddity oddity{};
  Fault::Disconnect disconnect = Fault::Disconnect::kNone;
  std::optional<std::uint64_t> cut_after;
  std::vector<std::string> operations;
  std::optional<std::string> bucket;
  std::string key_prefix;
  double rate = 1;
  std::uint64_t skip = 0, count = std::numeric_limits<std::uint64_t>::max();
  std::uint64_t seen = 0, fired = 0;

  bool Matches(std::string_view operation, std::string_view in_bucket, std::string_view key) const {
    return (operations.empty() || std::ranges::find(operations, operation) != operations.end()) &&
           (!bucket || *bucket == in_bucket) && key.starts_with(key_prefix);
  }
};

namespace {

S3Error ErrorOfStatus(int status) {
  std::string_view code = status == 503   ? "SlowDown"
                          : status == 403 ? "AccessDenied"
                          : status == 404 ? "NoSuchKey"
                          : status == 429 ? "TooManyRequests"
                          : status == 408 ? "RequestTimeout"
                                          : "InternalError";
  S3Error error(code, status == 503 ? "Please reduce your request rate." : "A fault ordered with --fault.");
  error.status = status;
  return error;
}

Result<std::uint64_t> ParseNumber(std::string_view text) {
  std::uint64_t value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) {
    return Fail(Code::kInvalidArgument, "\"{}\" is not a number; expected a whole one of at least 0", text);
  }
  return value;
}

Result<double> ParseRate(std::string_view text) {
  double scale = 1;
  if (text.ends_with('%')) {
    text.remove_suffix(1);
    scale = 0.01;
  }
  double value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size() || !(value * scale >= 0) ||
      value * scale > 1) {
    return Fail(Code::kInvalidArgument, "\"{}\" is not a rate such as 5% or 0.05", text);
  }
  return value * scale;
}

/// Reads the status or the code of an error.
Result<S3Error> ParseError(std::string_view text) {
  const bool is_code = !text.empty() && text[0] >= 'A' && text[0] <= 'Z' &&
                       std::ranges::all_of(text, [](unsigned char c) { return std::isalnum(c) != 0; });
  if (is_code) return S3Error(text, "A fault ordered with --fault.");
  const std::uint64_t status = MR_TRY(ParseNumber(text));
  if (status < 400 || status > 599)
    return Fail(Code::kInvalidArgument, "{} is not an error's status; expected 400 to 599: choose one", status);
  return ErrorOfStatus(static_cast<int>(status));
}

Result<Fault::Disconnect> ParseReset(std::string_view where) {
  if (where == "request") return Fault::Disconnect::kBeforeOperation;
  if (where == "answer") return Fault::Disconnect::kBeforeAnswer;
  if (where == "body") return Fault::Disconnect::kInBody;
  return Fail(Code::kInvalidArgument, "reset takes request, answer, body or a size such as 64KiB, not \"{}\"", where);
}

constexpr std::byte kDamage{1};

/// Spreads bytes over time.
class Pacer {
 public:
  Pacer(std::uint64_t bytes_per_second, Clock& clock, std::stop_token stop)
      : rate_(bytes_per_second), clock_(clock), stop_(std::move(stop)), start_(clock.Now()) {}
  /// Returns how many bytes may move at once.
  std::uint64_t Piece(std::uint64_t wanted) const {
    return rate_ == 0 ? wanted : std::min(wanted, std::clamp<std::uint64_t>(rate_ / 20, 1, 256 * kKiB));
  }
  void Moved(std::uint64_t bytes) {
    if (rate_ == 0) return;
    moved_ += bytes;
    clock_.SleepUntil(
        start_ + Duration(static_cast<std::int64_t>(1e9 * static_cast<double>(moved_) / static_cast<double>(rate_))),
        stop_);
  }

 private:
  const std::uint64_t rate_;
  Clock& clock_;
  std::stop_token stop_;
  const TimePoint start_;
  std::uint64_t moved_ = 0;
};

class FaultyRequest final : public http::ServerRequest {
 public:
  FaultyRequest(http::ServerRequest& inner, const Fault& fault, Clock& clock)
      : inner_(inner), pacer_(fault.bytes_per_second, clock, inner.stop()) {
    if (fault.damage) damaged_at_ = inner.content_length().value_or(0) / 2;
  }
  std::string_view method() const override { return inner_.method(); }
  std::string_view target() const override { return inner_.target(); }
  std::string_view path() const override { return inner_.path(); }
  std::string_view query() const override { return inner_.query(); }
  const http::Headers& headers() const override { return inner_.headers(); }
  std::string_view peer() const override { return inner_.peer(); }
  std::optional<std::uint64_t> content_length() const override { return inner_.content_length(); }
  std::stop_token stop() const override { return inner_.stop(); }
  Result<std::string> ReadAllBody(std::uint64_t max_bytes) override { return inner_.ReadAllBody(max_bytes); }
  Result<std::size_t> ReadBody(MutableByteSpan into) override {
    std::size_t got = MR_TRY(inner_.ReadBody(into.first(pacer_.Piece(into.size()))));
    pacer_.Moved(got);
    if (damaged_at_ >= read_ && damaged_at_ < read_ + got) into[damaged_at_ - read_] ^= kDamage;
    read_ += got;
    return got;
  }

 private:
  http::ServerRequest& inner_;
  Pacer pacer_;
  std::uint64_t read_ = 0, damaged_at_ = UINT64_MAX;
};

class FaultyResponse final : public http::ServerResponse {
 public:
  FaultyResponse(http::ServerResponse& inner, const Fault& fault, std::stop_token stop, Clock& clock)
      : inner_(inner),
        disconnect_(fault.disconnect),
        cut_after_(fault.cut_after),
        damages_(fault.damage),
        white_space_(fault.white_space),
        clock_(clock),
        stop_(stop),
        pacer_(fault.bytes_per_second, clock, std::move(stop)) {}

  Status Send(int status, http::Headers headers, ByteSpan body) override {
    if (white_space_.count() > 0 && status == 200) return SendAfterSpace(std::move(headers), body);
    MR_TRY(Start(status, std::move(headers), body.size()));
    MR_TRY(Write(body));
    return Finish();
  }
  Status Start(int status, http::Headers headers, std::optional<std::uint64_t> content_length) override {
    if (disconnect_ == Fault::Disconnect::kBeforeAnswer) return Break();
    left_ = content_length.value_or(0) / 2;
    if (damages_) damaged_at_ = left_;
    if (cut_after_) left_ = *cut_after_;
    if (cut_after_ && content_length && *content_length <= *cut_after_) ends_in_body_ = false;
    return inner_.Start(status, std::move(headers), content_length);
  }
  Status Write(ByteSpan bytes) override {
    while (!bytes.empty()) {
      ByteSpan piece = bytes.first(MR_TRY(Allow(bytes.size())));
      const std::byte damaged = piece[0] ^ kDamage;
      MR_TRY(inner_.Write(written_ == damaged_at_ ? ByteSpan(&damaged, 1) : piece));
      Moved(piece.size());
      bytes = bytes.subspan(piece.size());
    }
    return {};
  }
  Status WriteFile(int fd, std::uint64_t offset, std::uint64_t length) override {
    while (length > 0) {
      std::uint64_t piece = MR_TRY(Allow(length));
      if (std::byte byte; written_ == damaged_at_ && ::pread(fd, &byte, 1, static_cast<off_t>(offset)) == 1) {
        byte ^= kDamage;
        MR_TRY(inner_.Write(ByteSpan(&byte, 1)));
      } else {
        MR_TRY(inner_.WriteFile(fd, offset, piece));
      }
      Moved(piece);
      offset += piece;
      length -= piece;
    }
    return {};
  }
  Status Finish() override { return ends_in_body_ && !(cut_after_ && left_ > 0) ? Break() : inner_.Finish(); }
  void Abort(bool reset) override { inner_.Abort(reset); }
  bool started() const override { return inner_.started(); }

 private:
  Status SendAfterSpace(http::Headers headers, ByteSpan body) {
    constexpr Duration kEvery = std::chrono::milliseconds(100);
    MR_TRY(inner_.Start(200, std::move(headers), std::nullopt));
    for (Duration sent{}; sent < white_space_; sent += kEvery) {
      MR_TRY(inner_.Write(AsBytes(std::string_view(" "))));
      if (!clock_.SleepFor(kEvery, stop_)) return Break();
    }
    MR_TRY(inner_.Write(body));
    return inner_.Finish();
  }
  /// Returns how many of `wanted` bytes may be sent now.
  Result<std::uint64_t> Allow(std::uint64_t wanted) {
    wanted = pacer_.Piece(wanted);
    if (damaged_at_ == written_) wanted = 1;
    if (damaged_at_ > written_) wanted = std::min(wanted, damaged_at_ - written_);
    if (!ends_in_body_) return wanted;
    if (left_ == 0) return Break();
    wanted = std::min(wanted, left_);
    left_ -= wanted;
    return wanted;
  }
  void Moved(std::uint64_t bytes) {
    written_ += bytes;
    pacer_.Moved(bytes);
  }
  std::unexpected<Error> Break() {
    inner_.Abort(disconnect_ != Fault::Disconnect::kTruncate);
    return Fail(Code::kUnavailable, "cut short by --fault");
  }

  http::ServerResponse& inner_;
  const Fault::Disconnect disconnect_;
  const std::optional<std::uint64_t> cut_after_;
  bool ends_in_body_ = disconnect_ == Fault::Disconnect::kInBody || disconnect_ == Fault::Disconnect::kTruncate;
  const bool damages_;
  const Duration white_space_;
  Clock& clock_;
  const std::stop_token stop_;
  Pacer pacer_;
  std::uint64_t left_ = 0;  ///< of the body, until it is cut
  std::uint64_t written_ = 0, damaged_at_ = UINT64_MAX;
};

}  // namespace

FaultPlan::FaultPlan() = default;
FaultPlan::~FaultPlan() = default;

namespace {

/// Sets the effect `name=value`. Returns false if there is no effect of that name.
template <class Rule>
Result<bool> SetEffect(Rule& rule, std::string_view name, std::string_view value) {
  using Effect = typename Rule::Effect;
  if (name == "latency") {
    rule.effect = Effect::kLatency;
    std::size_t dots = value.find("..");
    rule.least = MR_TRY(ParseDuration(value.substr(0, dots)));
    rule.most = dots == std::string_view::npos ? rule.least : MR_TRY(ParseDuration(value.substr(dots + 2)));
    if (rule.most < rule.least)
      return Fail(Code::kInvalidArgument, "\"{}\" goes backwards; write the shorter time first", value);
  } else if (name == "bandwidth") {
    rule.effect = Effect::kBandwidth;
    rule.bytes_per_second = MR_TRY(ParseBytes(value));
    if (rule.bytes_per_second == 0)
      return Fail(Code::kInvalidArgument, "a bandwidth of zero; expected at least 1 byte a second");
  } else if (name == "error" || (name == "slowdown" && value.empty())) {
    rule.effect = Effect::kError;
    rule.error = name == "slowdown" ? ErrorOfStatus(503) : MR_TRY(ParseError(value));
  } else if (name == "white-space") {
    rule.effect = Effect::kWhiteSpace;
    rule.least = MR_TRY(ParseDuration(value));
  } else if (name == "truncate") {
    rule.effect = Effect::kDisconnect;
    rule.disconnect = Fault::Disconnect::kTruncate;
    if (!value.empty()) rule.cut_after = MR_TRY(ParseBytes(value));
  } else if (name == "unconditional" && value.empty()) {
    rule.effect = Effect::kUnconditional;
  } else if (name == "damage" && value.empty()) {
    rule.effect = Effect::kDamage;
  } else if (name == "reset") {
    rule.effect = Effect::kDisconnect;
    const bool is_size = !value.empty() && value[0] >= '0' && value[0] <= '9';
    if (is_size) rule.cut_after = MR_TRY(ParseBytes(value));
    rule.disconnect = is_size ? Fault::Disconnect::kInBody : MR_TRY(ParseReset(value));
  } else if (const auto oddity = FindOddity(name); oddity && value.empty()) {
    rule.effect = Effect::kOddity;
    rule.oddity = *oddity;
  } else {
    return false;
  }
  return true;
}

/// Sets a condition on the requests of a rule. Returns false if there is no condition of that name.
template <class Rule>
Result<bool> SetSelector(Rule& rule, std::string_view name, std::string_view value) {
  if (name == "op") {
    for (std::string_view operation : Split(value, '|')) rule.operations.emplace_back(Trim(operation));
  } else if (name == "bucket") {
    rule.bucket = std::string(value);
  } else if (name == "key") {
    rule.key_prefix = MR_TRY(PercentDecode(value));
  } else if (name == "rate") {
    rule.rate = MR_TRY(ParseRate(value));
  } else if (name == "skip") {
    rule.skip = MR_TRY(ParseNumber(value));
  } else if (name == "count") {
    rule.count = MR_TRY(ParseNumber(value));
  } else {
    return false;
  }
  return true;
}

constexpr std::string_view kWords[] = {"latency",       "bandwidth", "error", "slowdown",    "truncate", "reset",
                                       "unconditional", "damage",    "seed",  "white-space", "op",       "bucket",
                                       "key",           "rate",      "skip",  "count"};

}  // namespace

Result<std::unique_ptr<FaultPlan>> FaultPlan::Parse(std::string_view text) {
  auto plan = std::make_unique<FaultPlan>();
  std::vector<Rule> rules;
  for (std::string_view clause : Split(text, ';')) {
    clause = Trim(clause);
    if (clause.empty()) continue;
    Rule rule;
    bool has_effect = false;
    for (std::string_view word : Split(clause, ',')) {
      word = Trim(word);
      std::size_t equals = std::min(word.find('='), word.size());
      std::string_view name = Trim(word.substr(0, equals)),
                       value = Trim(word.substr(std::min(equals + 1, word.size())));
      auto explain = [&](Error error) { return Fail(error.Context(fmt::format("fault rule \"{}\"", clause))); };
      if (name == "seed" && clause == word) {
        auto seed = ParseNumber(value);
        if (!seed) return explain(seed.error());
        plan->seed_ = *seed;
        continue;
      }
      auto effect = SetEffect(rule, name, value);
      if (!effect) return explain(effect.error());
      if (*effect && has_effect)
        return explain(Error(Code::kInvalidArgument, "two effects in one rule: split them with ';'"));
      has_effect |= *effect;
      if (*effect) continue;
      auto selector = SetSelector(rule, name, value);
      if (!selector) return explain(selector.error());
      if (!*selector) {
        std::vector<std::string_view> words(std::begin(kWords), std::end(kWords));
        for (const OddityRow& row : OddityTable()) words.push_back(row.name);
        return explain(Error(Code::kInvalidArgument, UnknownName("word", name, words)));
      }
    }
    if (has_effect) {
      rules.push_back(std::move(rule));
    } else if (!clause.starts_with("seed")) {
      return Fail(Code::kInvalidArgument, "fault rule \"{}\" has no effect: name one, such as latency=50ms", clause);
    }
  }
  MutexLock lock(plan->mutex_);
  plan->rules_ = std::move(rules);
  lock.Unlock();
  return plan;
}

Fault FaultPlan::Decide(std::string_view operation, std::string_view bucket, std::string_view key) {
  Fault fault;
  MutexLock lock(mutex_);
  for (std::size_t i = 0; i < rules_.size(); ++i) {
    Rule& rule = rules_[i];
    if (!rule.Matches(operation, bucket, key)) continue;
    const std::uint64_t turn = rule.seen++;
    if (turn < rule.skip || rule.fired >= rule.count) continue;
    Random random(Mix64(seed_) ^ Mix64(i + 1) ^ turn);
    if (random.Uniform() >= rule.rate) continue;
    ++rule.fired;
    switch (rule.effect) {
      case Rule::Effect::kLatency:
        fault.latency += rule.least + Duration(static_cast<std::int64_t>(
                                          random.Uniform() * static_cast<double>((rule.most - rule.least).count())));
        break;
      case Rule::Effect::kWhiteSpace:
        fault.white_space = rule.least;
        break;
      case Rule::Effect::kOddity:
        fault.oddities.set(static_cast<std::size_t>(rule.oddity));
        break;
      case Rule::Effect::kBandwidth:
        fault.bytes_per_second = rule.bytes_per_second;
        break;
      case Rule::Effect::kError:
        if (!fault.error) fault.error = rule.error;
        break;
      case Rule::Effect::kDisconnect:
        if (fault.disconnect != Fault::Disconnect::kNone) break;
        fault.disconnect = rule.disconnect;
        fault.cut_after = rule.cut_after;
        break;
      case Rule::Effect::kUnconditional:
        fault.unconditional = true;
        break;
      case Rule::Effect::kDamage:
        fault.damage = true;
        break;
    }
  }
  return fault;
}

std::unique_ptr<http::ServerRequest> ApplyToRequest(const Fault& fault, http::ServerRequest& request, Clock& clock) {
  return std::make_unique<FaultyRequest>(request, fault, clock);
}

std::unique_ptr<http::ServerResponse> ApplyToResponse(const Fault& fault, http::ServerResponse& response,
                                                      std::stop_token stop, Clock& clock) {
  return std::make_unique<FaultyResponse>(response, fault, std::move(stop), clock);
}

}  // namespace millrace::s3d
