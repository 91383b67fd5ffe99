// Random sequences of the object commands against an endpoint with random oddities and faults, beside a model of what a
// user may expect: a command that ends with status 0 did all that it says; any other command lost nothing that it was
// not told to remove, and says why.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <optional>

#include "millrace/base/hash/random.h"
#include "millrace/base/text.h"
#include "millrace/object/blocking.h"
#include "millrace/object/open/open.h"
#include "millrace/s3d/oddity.h"
#include "tests/cli/object_fixture.h"

namespace millrace {
namespace {

using testing_support::Ran;

/// Contents by place: "s3:" and a key, or "local:" and a file's name.
using Contents = std::map<std::string, std::string>;

/// One command with what it should do.
struct ModelCommand {
  std::vector<std::string> words;
  Contents expected;                                         ///< all contents, if it succeeds
  std::vector<std::pair<std::string, std::string>> moves{};  ///< from place to place
  std::optional<std::string> output{};                       ///< of standard output, if it succeeds
  std::string input{};
};

/// Copies what is below `from` to below `to`. Returns the pairs of places.
std::vector<std::pair<std::string, std::string>> CopyBelow(const Contents& before, const std::string& from,
                                                           const std::string& to, Contents& after) {
  std::vector<std::pair<std::string, std::string>> pairs;
  for (const auto& [place, content] : before) {
    if (!place.starts_with(from)) continue;
    pairs.emplace_back(place, to + place.substr(from.size()));
    after[pairs.back().second] = content;
  }
  return pairs;
}
void RemoveExtra(const Contents& before, const std::string& from, const std::string& to, Contents& after) {
  for (const auto& [place, content] : before) {
    if (place.starts_with(to) && !before.contains(from + place.substr(to.size()))) after.erase(place);
  }
}

class OddModel : public ObjectFixture {
 protected:
  void SetUp() override {
    ObjectFixture::SetUp();
    if (IsSkipped()) return;
    program_.env().insert({{"AWS_MAX_ATTEMPTS", "4"}});
    auto connection = object::OpenConnection(
        {.endpoint_url = server_->endpoint(),
         .environment = {{"AWS_ACCESS_KEY_ID", "key"}, {"AWS_SECRET_ACCESS_KEY", "secret-of-the-test"}}});
    ASSERT_TRUE(connection);
    connection_ = *std::move(connection);
    auto bucket = object::Locate(*connection_, "s3://bucket");
    ASSERT_TRUE(bucket);
    store_ = bucket->store;
  }

  /// Returns what the store holds, read without faults.
  Contents Observe() {
    EXPECT_TRUE(server_->SetFaults(""));
    Contents contents;
    const Status listed = object::ListAll(*store_, {}, [&](const object::ListPage& page) {
      for (const object::ObjectInfo& object : page.objects) {
        auto got = object::GetAll(*store_, object.key, kMiB);
        contents["s3:" + object.key] = got && *got ? (*got)->bytes : "<unreadable>";
      }
      return true;
    });
    EXPECT_TRUE(listed);
    for (const char* folder : {"l", "m"}) {
      for (const std::string& name : LocalFiles(folder)) {
        const std::string path = fmt::format("{}/{}", folder, name);
        if (!name.contains(".millrace")) contents["local:" + path] = Local(path);
      }
    }
    return contents;
  }
  std::string AnyBelow(const Contents& contents, const std::string& prefix) {
    std::vector<std::string> places;
    for (const auto& [place, content] : contents) {
      if (place.starts_with(prefix)) places.push_back(place);
    }
    return places.empty() ? "" : places[random_.Below(places.size())];
  }
  std::string NewContent() {
    std::string content = fmt::format("content {} ", ++written_);
    content.resize(content.size() + random_.Below(3000), 'x');
    return content;
  }
  static std::string Word(const std::string& place) {
    return place.starts_with("s3:") ? "s3://bucket/" + place.substr(3) : place.substr(6);
  }

  ModelCommand OneFile(const Contents& before) {
    const bool from_store = random_.Below(2) == 0, to_store = !from_store || random_.Below(2) == 0;
    const std::string from = AnyBelow(before, from_store ? "s3:" : "local:");
    if (from.empty()) return {};
    const std::string to = fmt::format("{}{}", to_store ? "s3:" : "local:l/", fmt::format("n{}", random_.Below(4)));
    if (to == from) return {};
    ModelCommand command{.words = {random_.Below(2) ? "mv" : "cp", Word(from), Word(to)}, .expected = before};
    command.expected[to] = before.at(from);
    if (command.words[0] == "mv") {
      command.expected.erase(from);
      command.moves.emplace_back(from, to);
    }
    return command;
  }
  ModelCommand Tree(const Contents& before) {
    static const std::pair<const char*, const char*> kWays[] = {
        {"local:l/", "s3:d/"}, {"s3:d/", "local:m/"}, {"s3:d/", "s3:e/"}, {"local:m/", "s3:e/"}};
    const auto& [from, to] = kWays[random_.Below(std::size(kWays))];
    if (AnyBelow(before, from).empty()) return {};
    ModelCommand command{.words = {}, .expected = before};
    const auto pairs = CopyBelow(before, from, to, command.expected);
    switch (random_.Below(4)) {
      case 0:
        command.words = {"cp", "-r", Word(from), Word(to)};
        break;
      case 1:
        command.words = {"mv", "-r", Word(from), Word(to)};
        command.moves = pairs;
        for (const auto& [source, destination] : pairs) command.expected.erase(source);
        break;
      case 2:
        command.words = {"sync", "--checksum", Word(from), Word(to)};
        break;
      default:
        command.words = {"sync", "--checksum", "--delete", Word(from), Word(to)};
        RemoveExtra(before, from, to, command.expected);
    }
    return command;
  }
  ModelCommand InStore(const Contents& before) {
    const std::string one = AnyBelow(before, "s3:");
    ModelCommand command{.words = {}, .expected = before};
    switch (one.empty() ? 3 : random_.Below(6)) {
      case 0:
        command.words = {"rm", Word(one)};
        command.expected.erase(one);
        break;
      case 1:
        command.words = {"rm", "-r", "s3://bucket/e/"};
        if (AnyBelow(before, "s3:e/").empty()) return {};
        std::erase_if(command.expected, [](const auto& entry) { return entry.first.starts_with("s3:e/"); });
        break;
      case 2:
        command.words = {"cat", Word(one)};
        command.output = before.at(one);
        break;
      case 3:
        command.words = {"pipe", fmt::format("s3://bucket/d/p{}", random_.Below(3))};
        command.input = NewContent();
        command.expected["s3:" + command.words[1].substr(12)] = command.input;
        break;
      case 4:
        if (AnyBelow(before, "s3:d/").empty()) return {};
        command.words = {"ls", "-r", "--json", "s3://bucket/d/"};
        break;
      default:
        command.words = {"head", "--json", Word(one)};
    }
    return command;
  }
  std::string AnyFaults() {
    static const char* kFaults[] = {"error=503,rate=20%",
                                    "reset=answer,rate=10%",
                                    "reset=body,rate=10%",
                                    "error=501,op=DeleteObjects",
                                    "error=405,op=DeleteObjects",
                                    "truncate,rate=10%",
                                    "reset=request,rate=10%",
                                    "error=400,op=PutObject,rate=30%",
                                    "damage,rate=10%",
                                    "error=404,op=ListMultipartUploads",
                                    "error=NotImplemented,op=DeleteObjects",
                                    "error=InvalidArgument,op=DeleteObjects",
                                    "reset=700",
                                    "truncate=1KiB,op=GetObject",
                                    "error=AccessDenied,op=DeleteObject,rate=50%"};
    std::string spec = fmt::format("seed={}", random_.Below(1'000'000));
    for (std::uint64_t left = random_.Below(4); left > 0; --left) {
      const auto table = s3d::OddityTable();
      const std::uint64_t which = random_.Below(table.size() + std::size(kFaults));
      spec += ";";
      spec += which < table.size() ? table[which].name : std::string_view(kFaults[which - table.size()]);
    }
    return spec;
  }

  void Check(const ModelCommand& command, const Ran& ran, const Contents& before) {
    const Contents after = Observe();
    if (ran.exit == 0) {
      EXPECT_EQ(after, command.expected);
      if (command.output) {
        EXPECT_EQ(ran.out, *command.output);
      }
      return;
    }
    EXPECT_FALSE(ran.err.empty()) << "status " << ran.exit << " without a word";
    auto at = [](const Contents& contents, const std::string& place) {
      const auto found = contents.find(place);
      return found == contents.end() ? std::optional<std::string>() : std::optional(found->second);
    };
    for (const Contents* known : {&before, &command.expected, &after}) {
      for (const auto& [place, content] : *known) {
        const auto now = at(after, place);
        EXPECT_TRUE(now == at(before, place) || now == at(command.expected, place))
            << place << " is now " << now.value_or("absent").substr(0, 20);
      }
    }
    for (const auto& [from, to] : command.moves) {
      EXPECT_TRUE(at(after, from) == before.at(from) || at(after, to) == before.at(from)) << "lost: " << from;
    }
  }

  /// Runs one sequence. Returns whether the model held.
  bool Play(std::uint64_t seed) {
    random_ = Random(seed);
    std::string story = fmt::format("seed {}", seed);
    for (int i = 0; i < 3; ++i) WriteLocal(fmt::format("l/f{}", i), NewContent());
    std::filesystem::create_directories(work() / "m");
    for (int step = 0; step < 8 && !HasFailure(); ++step) {
      const Contents before = Observe();
      const std::uint64_t kind = random_.Below(3);
      const ModelCommand command = kind == 0 ? OneFile(before) : kind == 1 ? Tree(before) : InStore(before);
      if (command.words.empty()) continue;
      const std::string faults = AnyFaults();
      story += fmt::format("\n  --fault \"{}\"  millrace {}", faults, fmt::join(command.words, " "));
      EXPECT_TRUE(server_->SetFaults(faults));
      const Ran ran = Millrace(command.words, {}, command.input);
      SCOPED_TRACE(fmt::format("{}\n  status {}: {}", story, ran.exit, ran.err));
      if (faults.find(';') == faults.npos) {
        EXPECT_EQ(ran.exit, 0) << "without faults";
      }
      Check(command, ran, before);
    }
    return !HasFailure();
  }

  Random random_{1};
  int written_ = 0;
  std::unique_ptr<object::Connection> connection_;
  std::shared_ptr<object::Store> store_;
};

TEST_F(OddModel, CommandsDoWhatTheySayOrLoseNothing) {
  const char* count = std::getenv("MILLRACE_ODD_SEQUENCES");
  const std::uint64_t first = 1, sequences = count ? std::strtoull(count, nullptr, 10) : 20;
  for (std::uint64_t seed = first; seed < first + sequences; ++seed) {
    if (!Play(seed)) return;
    std::filesystem::remove_all(work() / "l");
    std::filesystem::remove_all(work() / "m");
    ASSERT_TRUE(object::ListAll(*store_, {}, [&](const object::ListPage& page) {
      for (const object::ObjectInfo& object : page.objects) EXPECT_TRUE(object::Delete(*store_, object.key));
      return true;
    }));
  }
}

}  // namespace
}  // namespace millrace
