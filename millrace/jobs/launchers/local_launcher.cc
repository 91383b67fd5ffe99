#include "millrace/jobs/launchers/local_launcher.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <ftw.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <system_error>

#include "millrace/base/hash/random.h"
#include "millrace/base/process/cores.h"
#include "millrace/base/process/subprocess.h"
#include "millrace/jobs/launchers/log_follower.h"

namespace millrace::jobs {
namespace {

constexpr Duration kLookInterval = std::chrono::milliseconds(100);  // a guess: log lines then seem immediate
constexpr std::size_t kMaxHeartbeat = 4096;                         // bytes that are read of a heartbeat file

/// The archive to unpack, and where.
struct CodeOptions {
  std::string url;               ///< URL of the archive (source/source_archive.h)
  std::filesystem::path folder;  ///< gets the content of the archive; its old content is removed
  /// Environment of the unpacking program: the credentials and endpoint of the ranks.
  std::map<std::string, std::string> env;
  std::filesystem::path log;  ///< gets the messages of the unpacking program
};

/// Less than the 60 s that an agent may take to start its ranks.
constexpr Duration kUnpackTime = std::chrono::seconds(45);
constexpr Duration kUnpackLeaveTime = std::chrono::seconds(5);

int RemoveEntry(const char* path, const struct stat*, int, struct FTW*) { return std::remove(path); }

/// Removes a folder. Stays in its file system: what is mounted in it is a bucket, perhaps.
Status RemoveFolder(const std::filesystem::path& folder) {
  constexpr int kOpenFolders = 16;
  if (::nftw(folder.c_str(), RemoveEntry, kOpenFolders, FTW_DEPTH | FTW_PHYS | FTW_MOUNT) == 0 || errno == ENOENT) {
    return {};
  }
  return Fail(Code::kIo, "cannot remove {}, the code of the attempt before: {}", folder.string(),
              std::generic_category().message(errno));
}

/// Runs `millrace job unpack-source` as another program, so that this process needs no connection to the store. Blocks
/// for at most 45 s. Errors: kInvalidArgument, kNotFound and kPermissionDenied from that program; kIo if the folder's
/// old content cannot be removed; else kUnavailable: another try may help.
Status UnpackCode(const CodeOptions& options) {
  MR_TRY(RemoveFolder(options.folder));
  std::error_code none;
  std::filesystem::remove(options.log, none);  // the messages of an earlier attempt
  Subprocess program = MR_TRY(Subprocess::Start({.argv = {(MR_TRY(ProgramDirectory()) / "millrace").string(), "job",
                                                          "unpack-source", options.url, options.folder.string()},
                                                 .env = options.env,
                                                 .stdout_file = options.log,
                                                 .stderr_file = options.log}));
  const std::optional<ExitState> ended = program.Wait(kUnpackTime);
  if (!ended) {
    program.Stop(kUnpackLeaveTime);
    return Fail(Code::kUnavailable, "{} could not be read within {} seconds", options.url,
                kUnpackTime / std::chrono::seconds(1));
  }
  if (ended->ok()) return {};
  Code code = Code::kUnavailable;
  for (const Code each : {Code::kInvalidArgument, Code::kNotFound, Code::kPermissionDenied}) {
    if (ended->signal == 0 && ended->exit_code == ToExitStatus(each)) code = each;
  }
  constexpr int kLines = 3;
  std::string said = TailOf(options.log, 0, kLines);
  if (said.empty()) said = ended->ToString();
  return Fail(code, "the code of the job cannot be unpacked: {}", said);
}

}  // namespace

Result<int> FreePort() {
  UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (!socket || ::bind(socket.get(), generic, size) != 0 || ::getsockname(socket.get(), generic, &size) != 0) {
    return Fail(ErrnoError(errno, "cannot find a free port on 127.0.0.1"));
  }
  return ntohs(address.sin_port);
}

std::string NewRankSecret() { return SecureHex(32); }

LocalLauncher::LocalLauncher(Options options)
    : options_(std::move(options)), wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  const int followed = !options_.on_line ? 0 : options_.all_lines ? options_.ranks : 1;
  for (int rank = 0; rank < followed; ++rank) {
    lines_.push_back({LogFollower(LogPath(rank, "out")), LogFollower(LogPath(rank, "err"))});
  }
}

LocalLauncher::~LocalLauncher() {
  children_.clear();
  mounts_.reset();
  // Never a recursive removal: if the mount is still there, the folder is a bucket.
  if (!made_checkpoints_.empty()) ::rmdir(made_checkpoints_.c_str());
}

std::filesystem::path LocalLauncher::LogPath(int rank, std::string_view suffix) const {
  return options_.folder / "logs" / fmt::format("rank-{}.{}", options_.place.first_rank + rank, suffix);
}

std::filesystem::path LocalLauncher::HeartbeatPath(int rank) const {
  return options_.folder / "heartbeats" / fmt::format("rank-{}", options_.place.first_rank + rank);
}

/// Returns the value of MILLRACE_RANK_SECRET; empty: the launcher sets none.
std::string LocalLauncher::RankSecret() const {
  const RankPlacement& place = options_.place;
  if (options_.foreign && !StartsRanks(*options_.foreign)) return "";
  const bool are_all = place.world_size == 0 || place.world_size == options_.ranks;
  return place.rank_secret.empty() && are_all ? NewRankSecret() : place.rank_secret;
}

Subprocess::Options LocalLauncher::Command(int rank, int attempt, int port, const std::string& secret,
                                           int lifeline) const {
  Subprocess::Options command;
  command.argv = options_.foreign ? options_.foreign->command : options_.command;
  command.env = options_.env;
  if (options_.foreign) {
    command.working_directory = options_.foreign->directory;
    if (!options_.foreign->source.empty()) command.working_directory = CodeFolder();
    command.env.try_emplace("PYTHONUNBUFFERED", "1");
  }
  if (!checkpoints_.empty()) command.env["MILLRACE_CHECKPOINTS"] = checkpoints_;
  const RankPlacement& place = options_.place;
  command.env["RANK"] = std::to_string(place.first_rank + rank);
  const int local_ranks = place.local_world_size > 0 ? place.local_world_size : options_.ranks;
  command.env["LOCAL_RANK"] = std::to_string(place.first_local_rank + rank);
  command.env["WORLD_SIZE"] = std::to_string(place.world_size > 0 ? place.world_size : options_.ranks);
  command.env["LOCAL_WORLD_SIZE"] = std::to_string(local_ranks);
  command.env["GROUP_RANK"] = std::to_string(place.first_rank / local_ranks);
  command.env["MASTER_ADDR"] = place.master_address;
  command.env["MASTER_PORT"] = std::to_string(port);
  if (!secret.empty()) command.env["MILLRACE_RANK_SECRET"] = secret;
  if (options_.foreign && !StartsRanks(*options_.foreign)) command.unset_env = {"MILLRACE_RANK_SECRET"};
  command.env["MILLRACE_HEARTBEAT_FILE"] = HeartbeatPath(rank).string();
  command.env["MILLRACE_ATTEMPT"] = std::to_string(attempt);
  const bool has_threads = options_.env.contains("OMP_NUM_THREADS") || std::getenv("OMP_NUM_THREADS") != nullptr;
  if (options_.threads > 0 || !has_threads) {
    const int share = std::max(1, UsableCores() / local_ranks);
    command.env["OMP_NUM_THREADS"] = std::to_string(options_.threads > 0 ? options_.threads : share);
  }
  command.env["MILLRACE_LIFELINE"] = std::to_string(lifeline);
  command.inherited_fds = {lifeline};
  command.stdout_file = LogPath(rank, "out");
  command.stderr_file = LogPath(rank, "err");
  return command;
}

/// Mounts what a foreign program is to see, and finds its folder for checkpoints.
Status LocalLauncher::PrepareFolders() {
  if (!options_.foreign) return {};
  const ForeignProgram& foreign = *options_.foreign;
  if (!foreign.source.empty()) {
    MR_TRY(UnpackCode({.url = foreign.source,
                       .folder = CodeFolder(),
                       .env = options_.env,
                       .log = options_.folder / "logs" / "source.err"}));
  }
  if (mounts_) return mounts_->Mount();
  checkpoints_ = foreign.checkpoint_folder;
  std::vector<FolderMount> mounts = foreign.mounts;
  if (!foreign.checkpoint_url.empty()) {
    if (checkpoints_.empty()) {
      std::string made = (std::filesystem::temp_directory_path() / "millrace-checkpoints-XXXXXX").string();
      if (::mkdtemp(made.data()) == nullptr) return Fail(ErrnoError(errno, "cannot make the folder " + made));
      checkpoints_ = made_checkpoints_ = made;
    }
    mounts.push_back({.url = foreign.checkpoint_url, .path = checkpoints_});
  } else if (!checkpoints_.empty()) {
    std::error_code error;
    std::filesystem::create_directories(checkpoints_, error);
    if (error) {
      return Fail(Code::kInvalidArgument, "cannot make the folder {}: {}; create it, or choose another", checkpoints_,
                  error.message());
    }
  }
  if (mounts.empty()) return {};
  mounts_ = std::make_unique<NodeMounts>(
      NodeMounts::Options{.mounts = std::move(mounts), .env = options_.env, .logs = options_.folder / "logs"});
  return mounts_->Mount();
}

Status LocalLauncher::Start(int attempt) {
  children_.clear();
  states_.clear();
  last_.reset();
  MR_TRY(PrepareFolders());
  const int port = options_.place.master_port > 0 ? options_.place.master_port : MR_TRY(FreePort());
  const std::string secret = RankSecret();
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return Fail(ErrnoError(errno, "cannot make a pipe"));
  const UniqueFd rank_end(ends[0]);
  lifeline_ = UniqueFd(ends[1]);
  std::vector<RankProcess> children;  // goes, and kills what it has, if a later rank cannot be started
  for (int rank = 0; rank < options_.ranks; ++rank) {
    std::error_code none;
    std::filesystem::remove(HeartbeatPath(rank), none);
    std::uint64_t written = std::filesystem::file_size(LogPath(rank, "err"), none);
    if (none) written = 0;
    const std::uint64_t before = OutputSize(rank);
    Subprocess process = MR_TRY(Subprocess::Start(Command(rank, attempt, port, secret, rank_end.get())));
    children.push_back({.process = std::move(process), .error_start = written, .written = before});
  }
  children_ = std::move(children);
  for (const RankProcess& child : children_) states_.push_back({.pid = child.process.pid()});
  return {};
}

std::span<const RankState> LocalLauncher::Wait(TimePoint until, std::stop_token stop) {
  std::stop_callback wake(stop, [this] { ::eventfd_write(wake_.get(), 1); });
  std::vector<pollfd> watched = {{.fd = wake_.get(), .events = POLLIN, .revents = 0}};
  for (std::size_t i = 0; i < children_.size(); ++i) {
    if (!children_[i].ended) watched.push_back({.fd = children_[i].process.pidfd(), .events = POLLIN, .revents = 0});
  }
  Duration wait = std::clamp<Duration>(until - SystemClock().Now(), Duration(0), kLookInterval);
  auto milliseconds = std::chrono::ceil<std::chrono::milliseconds>(wait).count();
  ::poll(watched.data(), watched.size(), static_cast<int>(milliseconds));
  eventfd_t ignored;
  ::eventfd_read(wake_.get(), &ignored);
  Look();
  return states_;
}

/// Reads exits before heartbeats and logs, so that it never misses the last step and the last lines of a rank.
void LocalLauncher::Look() {
  for (int rank = 0; rank < static_cast<int>(children_.size()); ++rank) {
    const auto index = static_cast<std::size_t>(rank);
    RankProcess& child = children_[index];
    if (child.ended) continue;
    const std::optional<ExitState> exit = child.process.Poll();
    child.ended = exit.has_value();
    ReadHeartbeat(rank);
    if (options_.foreign) {
      const std::uint64_t written = OutputSize(rank);
      if (written > child.written) ++states_[index].beats;
      child.written = written;
    }
    const bool is_last =
        child.ended && std::ranges::all_of(children_, [](const RankProcess& each) { return each.ended; });
    if (is_last && mounts_) {
      last_ = LastExit{.rank = index, .exit = *exit};
      mounts_->Unmount();
    } else {
      states_[index].exit = exit;
    }
  }
  if (last_) AwaitUnmount();
  for (int rank = 0; rank < static_cast<int>(lines_.size()); ++rank) Follow(rank);
}

/// Tells the exit of the last rank when its folders are unmounted. Until then it shows life.
void LocalLauncher::AwaitUnmount() {
  RankState& state = states_[last_->rank];
  const std::optional<Status> unmounted = mounts_->Unmounted();
  if (!unmounted) {
    ++state.beats;
    return;
  }
  state.exit = last_->exit;
  last_.reset();
  if (*unmounted || !state.exit->ok()) return;
  state.exit->exit_code = 1;
  state.cause = unmounted->error().message();
}

/// Returns how many bytes a rank has written, over all attempts.
std::uint64_t LocalLauncher::OutputSize(int rank) const {
  std::uint64_t written = 0;
  for (const char* suffix : {"out", "err"}) {
    std::error_code none;
    const std::uintmax_t size = std::filesystem::file_size(LogPath(rank, suffix), none);
    if (!none) written += size;
  }
  return written;
}

void LocalLauncher::Follow(int rank) {
  const auto index = static_cast<std::size_t>(rank);
  const bool ended = index < states_.size() && states_[index].exit.has_value();
  const auto follow = [&](LogFollower& log, Stream stream) {
    auto hand_on = [&](std::string_view line) { options_.on_line(options_.place.first_rank + rank, stream, line); };
    ended ? log.Drain(hand_on) : log.Poll(hand_on);
  };
  follow(lines_[index].out, Stream::kOut);
  follow(lines_[index].error, Stream::kError);
}

void LocalLauncher::ReadHeartbeat(int rank) {
  auto file = OpenFile(HeartbeatPath(rank), O_RDONLY | O_NOFOLLOW);
  struct stat info{};
  if (!file || ::fstat(file->get(), &info) != 0) return;
  HeartbeatVersion beat{info.st_ino, std::int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec};
  RankState& state = states_[static_cast<std::size_t>(rank)];
  RankProcess& child = children_[static_cast<std::size_t>(rank)];
  if (beat != child.beat) ++state.beats;
  child.beat = beat;
  char text[kMaxHeartbeat];
  ssize_t n = ::pread(file->get(), text, sizeof text, 0);
  std::uint64_t step = 0;
  auto [end, error] = std::from_chars(text, text + std::max<ssize_t>(n, 0), step);
  // Without a newline, the rank has not finished writing the file.
  if (n > 0 && error == std::errc{} && end < text + n && *end == '\n') state.step = step;
  const std::string_view lines(text, static_cast<std::size_t>(std::max<ssize_t>(n, 0)));
  const std::size_t first = lines.find('\n'), last = lines.rfind('\n');
  state.report_lines = first == last ? "" : lines.substr(first + 1, last - first);
}

void LocalLauncher::Signal(int signal_number) {
  for (RankProcess& child : children_) child.process.Signal(signal_number);
}

std::string LocalLauncher::ErrorTail(int rank, int lines) {
  return TailOf(LogPath(rank, "err"), children_.at(static_cast<std::size_t>(rank)).error_start, lines);
}

}  // namespace millrace::jobs
