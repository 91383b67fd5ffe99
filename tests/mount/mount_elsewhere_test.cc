// The end of a mount that is shown at other places, too: in another mount namespace, or by a bind mount.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/syscall.h>

#include <optional>

#include "millrace/mount/point/mount_point.h"
#include "tests/mount/mount_fixture.h"
#include "tests/support/mount_namespace.h"

namespace millrace {
namespace {

using testing::HasSubstr;

class MountElsewhereTest : public MountFixture {
 protected:
  void SetUp() override {
    MountFixture::SetUp();
    if (IsSkipped()) return;
    mount_->Put("f", "content");
    MustMount();
  }
  void TearDown() override {
    namespace_.reset();
    if (!bind_.empty()) ::umount2(bind_.c_str(), MNT_DETACH);
  }
  void MakeNamespace() {
    auto made = testing_support::MountNamespace::Make();
    if (!made) GTEST_SKIP() << made.error().ToString();
    namespace_.emplace(*std::move(made));
  }
  void MakeBind() {
    const std::filesystem::path folder = mount_->scratch() / "bind";
    std::filesystem::create_directory(folder);
    if (::mount(mount_->point().c_str(), folder.c_str(), nullptr, MS_BIND, nullptr) != 0) {
      GTEST_SKIP() << "a bind mount needs root";
    }
    bind_ = folder;
  }
  std::string ReadThere(const std::string& name = "f") {
    return namespace_->Run("cat '" + (mount_->point() / name).string() + "'");
  }
  MountProgram::Ran UmountEverywhere() { return mount_->Run({"umount", mount_->point().string(), "--everywhere"}); }
  static void EndAndAwait(pid_t daemon) {
    UniqueFd process(static_cast<int>(::syscall(SYS_pidfd_open, daemon, 0)));
    ASSERT_EQ(::kill(daemon, SIGTERM), 0);
    pollfd ended{process.get(), POLLIN, 0};
    ASSERT_EQ(::poll(&ended, 1, 60'000), 1);
  }

  std::optional<testing_support::MountNamespace> namespace_;
  std::filesystem::path bind_;
};

TEST_F(MountElsewhereTest, AnUnmountSaysWhoseNamespaceKeepsTheMount) {
  ASSERT_NO_FATAL_FAILURE(MakeNamespace());
  if (IsSkipped()) return;
  const pid_t daemon = mount_->daemon();
  const auto ended = mount_->Umount();
  EXPECT_EQ(ended.status, 1);
  EXPECT_THAT(ended.output, HasSubstr(fmt::format("the mount namespace of process {} (sh)", namespace_->shell())));
  EXPECT_THAT(ended.output, HasSubstr(fmt::format("kill {}", daemon)));
  EXPECT_FALSE(mount::FindMount(mount_->point())->has_value());
  EXPECT_EQ(ReadThere(), "content");

  // The end of that daemon leaves the next mount alone.
  MustMount();
  EXPECT_EQ(namespace_->Run("echo -n late > '" + (mount_->point() / "late").string() + "'"), "");
  EndAndAwait(daemon);
  EXPECT_THAT(ReadThere(), HasSubstr("not connected"));
  EXPECT_EQ(mount_->Object("late"), "late");
  Check("cat f late", "contentlate");
  MustUmount();
}

TEST_F(MountElsewhereTest, EndsInOtherNamespacesWhenAsked) {
  ASSERT_NO_FATAL_FAILURE(MakeNamespace());
  if (IsSkipped()) return;
  EXPECT_EQ(namespace_->Run("exec 8> '" + (mount_->point() / "open").string() + "'; echo -n written >&8"), "");
  const auto ended = UmountEverywhere();
  EXPECT_EQ(ended.status, 0) << ended.output << mount_->log();
  EXPECT_EQ(mount_->daemon(), 0);
  EXPECT_THAT(ReadThere(), HasSubstr("not connected"));
  EXPECT_EQ(mount_->Object("open"), "written");
}

TEST_F(MountElsewhereTest, ABindMountKeepsTheMountUnlessAskedOtherwise) {
  ASSERT_NO_FATAL_FAILURE(MakeBind());
  if (IsSkipped()) return;
  const pid_t daemon = mount_->daemon();
  const auto ended = mount_->Umount();
  EXPECT_EQ(ended.status, 1);
  EXPECT_THAT(ended.output, HasSubstr(bind_.string() + " shows it"));
  EXPECT_EQ(ReadFile(bind_ / "f").value_or(""), "content");
  EXPECT_EQ(mount_->daemon(), daemon);
  const auto again = mount_->Run({"umount", bind_.string()});
  EXPECT_EQ(again.status, 0) << again.output;
  EXPECT_EQ(mount_->daemon(), 0);
}

TEST_F(MountElsewhereTest, ABindMountEndsWithTheMountWhenAsked) {
  ASSERT_NO_FATAL_FAILURE(MakeBind());
  if (IsSkipped()) return;
  const auto ended = UmountEverywhere();
  EXPECT_EQ(ended.status, 0) << ended.output << mount_->log();
  EXPECT_EQ(mount_->daemon(), 0);
  EXPECT_EQ(ReadFile(bind_ / "f").error().code(), ErrnoError(ENOTCONN, "").code());
}

}  // namespace
}  // namespace millrace
