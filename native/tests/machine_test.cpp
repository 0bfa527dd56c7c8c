// Tests of the counters against a fake kernel, and of the measuring kernels against arithmetic.
#include "machine.hpp"

#include <sys/ioctl.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <set>

#include "check.hpp"
#include "perf_counters.hpp"

namespace {

using namespace tierup;

// A kernel with counters that each advance by 100 a read, in a group that runs `running` of every 1000 ns.
struct FakeKernel {
  int open_error = 0;          // errno of perf_event_open
  int fail_open_at = 0;        // the how-manieth open fails with it
  int control_error = 0;
  int read_error = 0;
  int interruptions = 0;       // EINTR that many times first
  std::size_t short_by = 0;    // bytes missing from each answer
  std::uint64_t running = 1000;
  std::uint64_t step = 100;

  int opens = 0, next_fd = 40;
  std::uint64_t reads = 0;
  std::map<int, int> leader;   // fd -> its group's fd
  std::set<unsigned long> requests;
  bool misused = false;
} fake;

int fail_with(int error) {
  errno = error;
  return -1;
}

int fake_open(perf_event_attr* attr, pid_t pid, int cpu, int group_fd, unsigned long flags) {
  const bool leads = group_fd == -1;
  if (attr->size != sizeof(*attr) || !attr->exclude_kernel || attr->disabled != leads) fake.misused = true;
  if (pid != 0 || cpu != -1 || flags != PERF_FLAG_FD_CLOEXEC) fake.misused = true;
  if (!leads && !fake.leader.count(group_fd)) fake.misused = true;
  if (++fake.opens >= fake.fail_open_at && fake.open_error) return fail_with(fake.open_error);
  fake.leader[fake.next_fd] = leads ? fake.next_fd : group_fd;
  return fake.next_fd++;
}

int fake_control(int fd, unsigned long request, unsigned long argument) {
  if (!fake.leader.count(fd) || fake.leader[fd] != fd || argument != PERF_IOC_FLAG_GROUP) fake.misused = true;
  if (fake.control_error) return fail_with(fake.control_error);
  fake.requests.insert(request);
  return 0;
}

ssize_t fake_read(int fd, void* buffer, std::size_t bytes) {
  if (fake.interruptions > 0) {
    --fake.interruptions;
    return fail_with(EINTR);
  }
  if (fake.read_error) return fail_with(fake.read_error);
  std::uint64_t members = 0;
  for (const auto& [member, group] : fake.leader) members += group == fd;
  if (bytes != (3 + members) * 8) fake.misused = true;
  ++fake.reads;
  std::vector<std::uint64_t> answer{members, fake.reads * 1000, fake.reads * fake.running};
  for (std::uint64_t i = 0; i < members; ++i) answer.push_back((i + 1) * fake.step * fake.reads);
  std::memcpy(buffer, answer.data(), bytes - fake.short_by);
  return static_cast<ssize_t>(bytes - fake.short_by);
}

int fake_close(int fd) {
  const bool leads = fake.leader[fd] == fd;
  if (leads && fake.leader.size() > 1) fake.misused = true;  // its members must be gone by then
  if (fake.leader.erase(fd) != 1) fake.misused = true;
  return 0;
}

constexpr PerfSystem kFake{fake_open, fake_control, fake_read, fake_close};

void expect_clean() {
  CHECK(fake.leader.empty());  // every descriptor was closed, once
  CHECK(!fake.misused);
}

TEST(a_group_counts) {
  fake = {};
  {
    CounterGroup group(kFake);
    CounterSample before, after;
    double counts[3];
    CHECK(group.open(hardware_counters().first(3)) == 0);
    CHECK(group.open(hardware_counters().first(1)) == EBUSY);
    CHECK(group.start() == 0 && group.read(before) == 0 && group.read(after) == 0 && group.stop() == 0);
    CHECK(counts_between(before, after, counts));
    CHECK(counts[0] == 100 && counts[1] == 200 && counts[2] == 300);
    CHECK(fake.requests == (std::set<unsigned long>{PERF_EVENT_IOC_ENABLE, PERF_EVENT_IOC_DISABLE}));
  }
  expect_clean();
}

TEST(a_group_that_takes_turns_is_scaled) {
  fake = {};
  fake.running = 250;
  CounterGroup group(kFake);
  CounterSample before, after;
  double count = 0;
  CHECK(group.open(hardware_counters().first(1)) == 0 && group.read(before) == 0 && group.read(after) == 0);
  CHECK(counts_between(before, after, {&count, 1}));
  CHECK(count == 400);  // 100 in a quarter of the time
  group.close();
  expect_clean();
}

TEST(a_group_that_never_ran_has_no_figure) {
  fake = {};
  fake.running = 0;
  const auto probes = probe_counters(hardware_counters().first(1), kFake);
  CHECK(probes[0].error == ENODATA && probes[0].count == 0);
  expect_clean();
}

TEST(a_counter_that_stays_zero_is_not_believed) {
  fake = {};
  fake.step = 0;
  for (const CounterProbe& probe : probe_counters(hardware_counters(), kFake)) {
    const bool impossible = !std::strcmp(probe.name, "cycles") || !std::strcmp(probe.name, "instructions");
    CHECK(probe.error == (impossible ? ENODATA : 0));
  }
  expect_clean();
}

TEST(every_refusal_is_passed_on) {
  for (const int error : {ENOENT, EACCES, EPERM, ENOSYS, EOPNOTSUPP, EMFILE}) {
    fake = {};
    fake.open_error = error;
    for (const CounterProbe& probe : probe_counters(hardware_counters(), kFake)) CHECK(probe.error == error);
    expect_clean();
  }
}

TEST(a_group_opens_whole_or_not_at_all) {
  fake = {};
  fake.open_error = ENOSPC;
  fake.fail_open_at = 3;
  CounterGroup group(kFake);
  CounterSample sample;
  CHECK(group.open(hardware_counters().first(4)) == ENOSPC);
  CHECK(group.start() == EBADF && group.stop() == EBADF && group.read(sample) == EBADF);
  expect_clean();
}

TEST(groups_have_a_size_limit) {
  fake = {};
  CounterGroup group(kFake);
  const std::vector<Counter> many(kMaxGroup + 1, hardware_counters()[0]);
  CHECK(group.open(many) == EINVAL && group.open({}) == EINVAL);
  CHECK(group.open(std::span(many).first(kMaxGroup)) == 0);
  group.close();
  expect_clean();
}

TEST(bad_answers_are_errors) {
  CounterSample sample;
  for (const auto& [short_by, read_error, expected] : {std::array{8, 0, EIO}, std::array{0, EFAULT, EFAULT}}) {
    fake = {};
    fake.short_by = static_cast<std::size_t>(short_by);
    fake.read_error = read_error;
    CounterGroup group(kFake);
    CHECK(group.open(hardware_counters().first(2)) == 0);
    CHECK(group.read(sample) == expected);
    group.close();
    expect_clean();
  }
  fake = {};
  fake.control_error = EINVAL;
  CHECK(probe_counters(hardware_counters().first(1), kFake)[0].error == EINVAL);
  expect_clean();
}

TEST(an_interrupted_read_is_repeated) {
  fake = {};
  fake.interruptions = 2;
  CounterGroup group(kFake);
  CounterSample sample;
  CHECK(group.open(hardware_counters().first(1)) == 0);
  CHECK(group.read(sample) == 0 && sample.counts[0] == 100);
  group.close();
  expect_clean();
}

// Software events need no hardware, so that the real system calls are exercised wherever the kernel allows any.
TEST(the_real_kernel_counts_or_refuses) {
  constexpr Counter kTaskClock{"task clock", PERF_TYPE_SOFTWARE, PERF_COUNT_SW_TASK_CLOCK, true};
  const CounterProbe probe = probe_counters({&kTaskClock, 1})[0];
  CHECK(probe.error == 0 ? probe.count > 0 : probe.error == EACCES || probe.error == EPERM || probe.error == ENOSYS);
}

TEST(chains_converge_and_reads_see_every_line) {
  constexpr int kBlocks = 3;
  alignas(64) static std::byte data[kBlocks * kReadBlockBytes];
  for (const MachineKernels* kernels : runnable_machine_kernels()) {
    // Every chain tends to 2, and the result is one lane of their sum.
    const float chains = kernels->fma_steps(100) / 2;
    CHECK(chains >= 1 && kernels->flops_per_step % (2 * static_cast<std::int64_t>(chains)) == 0);
    for (std::size_t block = 0; block < sizeof(data) / 64; ++block) {
      std::memset(data, 0, sizeof(data));
      data[64 * block] = std::byte{1};
      CHECK(kernels->read_passes(data, sizeof(data), 2) == 1);
    }
  }
}

TEST(rates_are_positive) {
  CHECK(measure_fma_flops({0}).per_s > 0);
  const Rate rate = measure_read_bytes({0, 0}, 5000);  // two threads on one CPU; no whole number of blocks
  CHECK(rate.per_s > 0 && rate.quiet_share > 0 && rate.quiet_share <= 1);
}

TEST(fork_join_takes_time_only_with_others) {
  const ForkJoin alone = measure_fork_join(1), two = measure_fork_join(2), many = measure_fork_join(8);
  CHECK(alone.spinning_us == 0 && alone.parked_us == 0);
  CHECK(two.spinning_us > 0 && two.parked_us > 0 && two.quiet_share >= 0 && two.quiet_share <= 1);
  CHECK(many.spinning_us > 0 && many.parked_us > 0);  // more threads than CPUs must not hang
}

}  // namespace
