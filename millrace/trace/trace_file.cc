#include "millrace/trace/trace_file.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <limits>

namespace millrace::trace {
namespace {

constexpr std::string_view kEventsKey = "\"traceEvents\":[\n";
constexpr std::string_view kEnd = "\n]}\n";

/// Returns microseconds since the clock's beginning, as text with nanoseconds behind the point.
std::string Micros(Duration time) {
  const std::int64_t nanoseconds = time.count(), whole = nanoseconds / 1000;
  const std::int64_t rest = nanoseconds % 1000;
  if (nanoseconds < 0) return fmt::format("-{}.{:03}", -whole, -rest);
  return fmt::format("{}.{:03}", whole, rest);
}

/// A metadata event: it names a process or a thread.
std::string NameEvent(std::string_view what, int rank, int thread, Json arguments) {
  return DumpJson({{"ph", "M"}, {"name", what}, {"pid", rank}, {"tid", thread}, {"args", std::move(arguments)}});
}

/// The beginning of a file, up to the events. One line, so that files are joined without parsing their events.
std::string Head(Json facts) {
  std::string head = DumpJson({{"displayTimeUnit", "ms"}, {"otherData", std::move(facts)}});
  head.pop_back();
  return head + "," + std::string(kEventsKey);
}

/// The parts of a trace file.
struct ParsedTrace {
  Json facts;
  std::string_view events;  ///< lines with commas between them
};

Result<ParsedTrace> ParseTrace(std::string_view text) {
  const std::size_t events = text.find(kEventsKey);
  if (events == std::string_view::npos || !text.ends_with(kEnd)) {
    return Fail(Code::kCorrupt, "this is not the trace of a rank");
  }
  const std::size_t begin = events + kEventsKey.size();
  const Json head = MR_TRY(ParseJson(fmt::format("{}\"traceEvents\":[]}}", text.substr(0, events)), "a trace"));
  const auto facts = head.find("otherData");
  if (facts == head.end() || !facts->is_object()) return Fail(Code::kCorrupt, "a trace does not say whose it is");
  return ParsedTrace{.facts = *facts, .events = text.substr(begin, text.size() - kEnd.size() - begin)};
}

}  // namespace

std::string RankTrace(const RankFacts& facts, const Recorder& recorder, const OtherSpans& others) {
  const int rank = facts.rank;
  const std::chrono::duration<double, std::micro> offset = facts.clock_offset, error = facts.clock_error;
  const Json clock = {{"rank", rank},
                      {"node", facts.node},
                      {"offset_us", offset.count()},
                      {"error_us", error.count()},
                      {"dropped", recorder.dropped() + others.dropped}};
  std::string out = Head({{"job", facts.job},
                          {"ranks", facts.ranks},
                          {"first_step", facts.first_step},
                          {"last_step", facts.last_step},
                          {"clocks", Json::array({clock})}});
  const std::string node = facts.node.empty() ? "" : fmt::format(" ({})", facts.node);
  out += NameEvent("process_name", rank, 0, {{"name", fmt::format("rank {}{}", rank, node)}}) + ",\n";
  out += NameEvent("process_sort_index", rank, 0, {{"sort_index", rank}});
  std::vector<std::string> threads = recorder.threads();
  const int own_threads = static_cast<int>(threads.size());
  threads.insert(threads.end(), others.threads.begin(), others.threads.end());
  for (std::size_t i = 0; i < threads.size(); ++i) {
    const int thread = static_cast<int>(i) + 1;  // 0 is the process
    out += ",\n" + NameEvent("thread_name", rank, thread, {{"name", threads[i]}});
    out += ",\n" + NameEvent("thread_sort_index", rank, thread, {{"sort_index", thread}});
  }
  std::vector<TraceEvent> events = recorder.events();
  for (TraceEvent event : others.events) {
    event.thread += own_threads;
    events.push_back(std::move(event));
  }
  // Spans are recorded at their ends. A span that contains others comes before them.
  std::ranges::sort(events, [](const TraceEvent& a, const TraceEvent& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end > b.end;
  });
  for (const TraceEvent& event : events) {
    const Duration begin = event.begin.time_since_epoch() - facts.clock_offset;
    out += fmt::format(R"(,{}{{"ph":"X","name":{},"cat":"{}","pid":{},"tid":{},"ts":{},"dur":{})", "\n",
                       DumpJson(event.name), CategoryName(event.category), rank, event.thread + 1, Micros(begin),
                       Micros(event.end - event.begin));
    if (!event.arguments.is_null()) out += fmt::format(",\"args\":{}", DumpJson(event.arguments));
    out += '}';
  }
  out += kEnd;
  return out;
}

Result<std::string> JoinTraces(std::span<const std::string> traces) {
  std::vector<ParsedTrace> parsed;
  Json facts;
  std::size_t bytes = 0;
  for (const std::string& trace : traces) {
    ParsedTrace one = MR_TRY(ParseTrace(trace));
    if (facts.is_null()) {
      facts = one.facts;
      facts["clocks"] = Json::array();
    }
    for (const Json& clock : one.facts["clocks"]) facts["clocks"].push_back(clock);
    bytes += one.events.size() + 2;
    parsed.push_back(std::move(one));
  }
  if (parsed.empty()) return Fail(Code::kNotFound, "no trace of a rank");
  std::string out = Head(std::move(facts));
  out.reserve(out.size() + bytes + kEnd.size());
  for (std::size_t i = 0; i < parsed.size(); ++i) {
    if (i > 0) out += ",\n";
    out += parsed[i].events;
  }
  out += kEnd;
  return out;
}

Result<std::string> Compress(std::string_view text) {
  constexpr int kGzipWindow = 15 + 16;  // deflateInit2: the largest window, with gzip's header
  constexpr int kLevel = 4;             // a trace shrinks to about a tenth; higher levels take several times as long
  if (text.size() > kMaxTraceBytes * 2) return Fail(Code::kResourceExhausted, "a trace of {} bytes", text.size());
  z_stream stream{};
  if (deflateInit2(&stream, kLevel, Z_DEFLATED, kGzipWindow, 8, Z_DEFAULT_STRATEGY) != Z_OK) {
    return Fail(Code::kResourceExhausted, "gzip: no memory");
  }
  std::string packed(deflateBound(&stream, text.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));  // zlib does not write there
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  const int status = deflate(&stream, Z_FINISH);
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  if (status != Z_STREAM_END) return Fail(Code::kInternal, "gzip: status {}", status);
  return packed;
}

Result<std::string> Decompress(std::string_view bytes, std::uint64_t most_bytes) {
  constexpr int kGzipWindow = 15 + 16;
  constexpr std::size_t kPiece = std::size_t{1} << 20;
  if (bytes.size() > std::numeric_limits<uInt>::max()) return Fail(Code::kResourceExhausted, "a trace is too large");
  z_stream stream{};
  if (inflateInit2(&stream, kGzipWindow) != Z_OK) return Fail(Code::kResourceExhausted, "gzip: no memory");
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  stream.avail_in = static_cast<uInt>(bytes.size());
  std::string text;
  int status = Z_OK;
  while (status == Z_OK && text.size() <= most_bytes) {
    const std::size_t before = text.size();
    text.resize(before + kPiece);
    stream.next_out = reinterpret_cast<Bytef*>(text.data() + before);
    stream.avail_out = static_cast<uInt>(kPiece);
    status = inflate(&stream, Z_NO_FLUSH);
    text.resize(before + kPiece - stream.avail_out);
  }
  inflateEnd(&stream);
  if (text.size() > most_bytes) return Fail(Code::kResourceExhausted, "a trace has more than {} bytes", most_bytes);
  if (status != Z_STREAM_END) return Fail(Code::kCorrupt, "this is not a whole gzip file");
  return text;
}

std::string TraceKey(std::uint64_t first, std::uint64_t last) {
  return fmt::format("traces/steps-{}-{}.json.gz", first, last);
}

std::string RankTraceKey(std::uint64_t first, std::uint64_t last, int rank) {
  return fmt::format("traces/steps-{}-{}/rank-{}.json.gz", first, last, rank);
}

}  // namespace millrace::trace
