#include "millrace/jobs/run_folder.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "millrace/base/files/files.h"
#include "millrace/base/text.h"
#include "millrace/object/blocking.h"

namespace millrace::jobs {
namespace {

constexpr std::uint64_t kMaxPublishedStatusBytes = 8 * kMiB;  // some 200 bytes a rank
constexpr std::uint64_t kMaxPageBytes = 16 * kMiB;            // a history has at most 8 MiB
constexpr std::size_t kOffsetDigits = 16;

std::string LogKey(std::string_view prefix, std::uint64_t begin) { return fmt::format("{}{:016}", prefix, begin); }

std::optional<std::uint64_t> OffsetOf(std::string_view key, std::string_view prefix) {
  const std::string_view digits = key.substr(std::min(prefix.size(), key.size()));
  std::uint64_t offset = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), offset);
  if (digits.size() != kOffsetDigits || error != std::errc() || end != digits.data() + digits.size())
    return std::nullopt;
  return offset;
}

/// A supervisor writes its status every ten seconds; buckets may be away for a while.
constexpr auto kLostAfter = std::chrono::minutes(2);

}  // namespace

std::optional<Json> EventOfLine(std::string_view line) {
  // What millrace-train says without --json (apps/millrace-train/main.cc).
  constexpr std::string_view kSaved = "checkpoint of step ";
  if (line.starts_with(kSaved)) {
    std::uint64_t step = 0;
    const std::string_view rest = line.substr(kSaved.size());
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), step);
    if (error != std::errc()) return std::nullopt;
    return Json{{"event", "checkpoint"}, {"step", step}};
  }
  if (!line.starts_with('{') || line.find("\"event\"") == std::string_view::npos) return std::nullopt;
  auto event = ParseJson(line, "a line of a rank");
  if (!event) return std::nullopt;
  const auto name = JsonString(*event, "event");
  if (!name || (*name != "checkpoint" && *name != "checkpoint_failed" && *name != "eval")) return std::nullopt;
  return *std::move(event);
}

std::string NewRunName(WallTime now, Random& random) {
  std::string name = FormatIso8601(now).substr(0, 19) + "Z";  // without fractions of a second
  std::erase_if(name, [](char c) { return c == '-' || c == ':'; });
  return fmt::format("{}-{:08x}", name, random.Below(std::uint64_t{1} << 32));
}

RunFolderWriter::RunFolderWriter(object::Location folder, Options options)
    : folder_(std::move(folder)), options_(std::move(options)) {}

Status RunFolderWriter::Write(const std::vector<Json>& new_events, const std::optional<Json>& status,
                              const object::Call& call) {
  for (Json event : new_events) {
    event["run"] = options_.run;
    pending_ += DumpJson(event) + "\n";
  }
  if (pending_.size() > options_.most_events) pending_.erase(0, pending_.find('\n', pending_.size() / 2) + 1);
  // Logs first: whoever reads of an end in the status finds the whole log.
  std::error_code error;
  for (std::filesystem::directory_iterator entry(options_.logs, error), end; !error && entry != end;
       entry.increment(error)) {
    std::error_code none;
    // Events have a file of their own in the bucket.
    if (!entry->is_regular_file(none) || entry->path().extension() == ".jsonl") continue;
    MR_TRY(CopyLog(entry->path(), call));
  }
  for (const std::filesystem::path& page : options_.pages) MR_TRY(CopyPage(page, call));
  MR_TRY(WriteEvents(call));
  if (!status) return {};
  Json object = *status;
  object["run"] = options_.run;
  const std::string text = DumpJsonPretty(object) + "\n";
  const auto put = object::Put(*folder_.store, folder_.key + "status.json", AsBytes(text),
                               {.content_type = "application/json"}, call);
  if (!put) return Fail(put.error());
  return {};
}

/// Brings what a log file has more than the bucket there: the object that is not full, and new ones.
Status RunFolderWriter::CopyLog(const std::filesystem::path& file, const object::Call& call) {
  const auto opened = OpenFile(file, O_RDONLY);
  struct stat info{};
  if (!opened || ::fstat(opened->get(), &info) != 0) return {};  // it is gone
  const auto size = static_cast<std::uint64_t>(info.st_size);
  const std::string name = file.filename().string();
  CopiedLog& log = logs_[name];
  const std::string prefix = fmt::format("{}logs/{}/{}/", folder_.key, options_.run, name);
  while (log.copied < size) {
    const std::uint64_t end = std::min(size, log.begin + options_.roll);
    std::string text(end - log.begin, '\0');
    // A file that cannot be read must not keep the others from the bucket.
    if (!ReadExactly(opened->get(), AsWritableBytes(text), log.begin, file.string())) return {};
    const auto put = object::Put(*folder_.store, LogKey(prefix, log.begin), AsBytes(text),
                                 {.content_type = "text/plain; charset=utf-8"}, call);
    if (!put) return Fail(put.error());
    log.copied = end;
    if (end - log.begin == options_.roll) log.begin = end;
  }
  return {};
}

Status RunFolderWriter::CopyPage(const std::filesystem::path& file, const object::Call& call) {
  auto text = ReadFile(file, kMaxPageBytes);
  if (!text || *text == pages_[file]) return {};  // it is not there yet, or cannot be read: the others must not wait
  const bool is_html = file.extension() == ".html";
  const auto put = object::Put(*folder_.store, folder_.key + file.filename().string(), AsBytes(*text),
                               {.content_type = is_html ? "text/html; charset=utf-8" : "application/json"}, call);
  if (!put) return Fail(put.error());
  pages_[file] = *std::move(text);
  return {};
}

Status RunFolderWriter::WriteEvents(const object::Call& call) {
  const std::string key = folder_.key + "events.jsonl";
  if (!read_events_) {
    const auto earlier = MR_TRY(object::GetAll(*folder_.store, key, 2 * options_.most_events, call));
    if (earlier) events_ = earlier->bytes;
    if (!events_.empty() && !events_.ends_with('\n')) events_ += '\n';
    read_events_ = true;
  }
  if (!pending_.empty()) {
    events_ += std::exchange(pending_, "");
    events_changed_ = true;
  }
  if (!events_changed_) return {};
  if (events_.size() > options_.most_events) {
    const std::size_t cut = events_.find('\n', events_.size() - options_.most_events);
    events_.erase(0, cut == std::string::npos ? 0 : cut + 1);
  }
  const auto put = object::Put(*folder_.store, key, AsBytes(events_), {.content_type = "application/x-ndjson"}, call);
  if (!put) return Fail(put.error());
  events_changed_ = false;
  return {};
}

Result<Json> ReadRunStatus(const object::ReadLocation& folder, const object::Call& call) {
  const std::string key = folder.key + "status.json";
  const auto found = MR_TRY(object::GetAll(*folder.store, key, kMaxPublishedStatusBytes, call));
  const std::string what = fmt::format("{}/{}", folder.store->Describe(), key);
  if (!found) {
    return Fail(Code::kNotFound, "{} does not exist: no job with this log.url has started yet", what);
  }
  const auto json = ParseJson(found->bytes, what);
  if (!json) return Fail(json.error().WithCode(Code::kCorrupt));
  return *json;
}

Result<JobStatus> StatusInFolder(const Json& json, WallTime now) {
  JobStatus status = MR_TRY(JobStatus::FromJson(json, "status.json"));
  const auto updated = ParseIso8601(status.updated);
  if (!updated || !status.active()) return status;
  const Duration silent = now - *updated;
  if (silent < kLostAfter) return status;
  status.state = "lost";
  status.message = fmt::format("its supervisor has written nothing for {}; its last words: {}", FormatDuration(silent),
                               status.message);
  return status;
}

RunLogReader::RunLogReader(object::ReadLocation folder, std::string run, std::string name)
    : folder_(std::move(folder)), prefix_(fmt::format("{}logs/{}/{}/", folder_.key, run, name)) {}

Result<bool> RunLogReader::Poll(const std::function<void(std::string_view)>& take, const object::Call& call) {
  bool found = false;
  Status read;
  // The object that was read last may be longer now; others follow it. No key begins with the prefix and sorts before
  // the digits of an offset.
  const std::string after = begin_ == 0 ? "" : LogKey(prefix_, begin_ - 1);
  const auto visit = [&](const object::ListPage& page) {
    for (const object::ObjectInfo& object : page.objects) {
      const auto begin = OffsetOf(object.key, prefix_);
      if (!begin) continue;
      found = true;
      const std::uint64_t end = *begin + object.size;
      if (*begin > offset_ || end <= offset_) continue;
      std::string text(end - offset_, '\0');
      const auto got =
          object::Get(*folder_.store, object.key, {.range = object::ByteRange{offset_ - *begin, end - offset_}},
                      AsWritableBytes(text), call);
      if (!got) {
        read = Fail(got.error());
        return false;
      }
      if (!*got) continue;  // somebody removes the folder
      text.resize((*got)->bytes);
      take(text);
      offset_ += text.size();
      begin_ = *begin;
    }
    return true;
  };
  MR_TRY(object::ListAll(*folder_.store, {.prefix = prefix_, .start_after = after}, visit, call));
  MR_TRY(std::move(read));
  return found || offset_ > 0;
}

}  // namespace millrace::jobs
