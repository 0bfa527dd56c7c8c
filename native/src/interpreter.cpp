#include "interpreter.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <limits>
#include <string>

#include "error.hpp"
#include "facts.hpp"
#include "tensor.hpp"

namespace tierup {

std::unique_ptr<CallState> CallStates::take() {
  {
    const std::lock_guard hold(mutex_);
    if (!idle_.empty()) {
      std::unique_ptr<CallState> state = std::move(idle_.back());
      idle_.pop_back();
      return state;
    }
  }
  auto state = std::make_unique<CallState>();
  const std::lock_guard hold(mutex_);
  state->miss = Draw(seed_++);
  return state;
}

void CallStates::reseed(uint64_t seed) {
  const std::lock_guard hold(mutex_);
  idle_.clear();
  seed_ = seed;
}

void CallStates::give_back(std::unique_ptr<CallState> state) {
  const std::lock_guard hold(mutex_);
  if (idle_.size() < kKept) idle_.push_back(std::move(state));
}

namespace {

// Below this a copy costs less than handing the host's lock over and back.
constexpr int64_t kLongCopyBytes = 64 * 1024;

// Loops need not call out, and may never end. Some thousand rounds take a few milliseconds, which is how long Python lets
// a thread wait.
constexpr uint32_t kRoundsPerTurn = 2048;

std::string value_name(int32_t index) { return "value " + std::to_string(index); }

// One running function: its frame and the step it is at.
class Activation {
 public:
  Activation(const CallContext& call, const Function& function, size_t depth)
      : call_(call), function_(function), depth_(depth), frame_(enter(call.state, function, depth)) {}
  Activation(const Activation&) = delete;
  Activation& operator=(const Activation&) = delete;
  ~Activation() {
    for (Value& value : frame_.values) value.reset();
    frame_.arena.clear();
  }

  Value& value(int32_t index) { return frame_.values[static_cast<size_t>(index)]; }

  void run();

  // An output as it may leave the function.
  Value output(int32_t index) { return out_of_arena(value(index)); }

 private:
  static Frame& enter(CallState& state, const Function& function, size_t depth) {
    if (depth >= kMaxDepth)
      throw CallError("functions call each other more than " + std::to_string(kMaxDepth) + " deep");
    if (depth == state.frames.size()) state.frames.push_back(std::make_unique<Frame>());
    Frame& frame = *state.frames[depth];
    frame.values.resize(function.n_values);
    frame.dims.assign(function.n_dims, 0);
    return frame;
  }

  int64_t& dim(int32_t index) { return frame_.dims[static_cast<size_t>(index)]; }

  Object& filled(int32_t index) {
    Object* object = value(index).get();
    if (object == nullptr) throw CallError(value_name(index) + " is empty");
    return *object;
  }

  Tensor& tensor(int32_t index) {
    Object& object = filled(index);
    if (object.kind != Kind::tensor) throw CallError(value_name(index) + " holds no tensor");
    return static_cast<Tensor&>(object);
  }

  // A tensor whose elements native code may touch.
  Tensor& plain_tensor(int32_t index) {
    Tensor& found = tensor(index);
    if (found.dtype == kString) throw CallError(value_name(index) + " holds strings, which only the host can read");
    return found;
  }

  std::vector<int64_t> shape(const Indices& dims) {
    std::vector<int64_t> sizes;
    sizes.reserve(dims.size() + 1);
    for (const int32_t index : dims) sizes.push_back(dim(index));
    return sizes;
  }

  // The arena is written over; what outlives it is copied to the heap.
  static Value out_of_arena(const Value& value) {
    const Tensor* source = as_tensor(value);
    if (source == nullptr || source->arena == nullptr) return value;
    return copy_dense(*source);
  }

  void step_aside_to_copy(const Tensor& source) {
    if (count_bytes(source.dtype, source.shape()) > kLongCopyBytes) call_.host.step_aside();
  }

  void jump(int32_t target) {
    if (static_cast<size_t>(target) < at_) count_round();
    at_ = static_cast<size_t>(target);
  }

  void count_round() {
    if (++call_.state.rounds % kRoundsPerTurn == 0) call_.host.take_turns();
  }

  void execute(const step::Dims& s) { run_dims(function_.dim_code, s.begin, s.end, frame_.dims, frame_.values); }
  void execute(const step::Alloc& s);
  void execute(const step::Constant& s) { value(s.value) = constant(s.constant); }
  void execute(const step::Callout& s);
  void execute(const step::Kernel& s);
  void execute(const step::Copy& s);
  void execute(const step::Move& s) { value(s.dst) = value(s.src); }
  void execute(const step::Free& s) { value(s.value).reset(); }
  void execute(const step::Jump& s) { jump(s.target); }
  void execute(const step::Branch& s);
  void execute(const step::BranchDim& s) {
    if (dim(s.dim) == 0) jump(s.target);
  }
  void execute(const step::Call& s);
  void execute(const step::Scalar& s);
  void execute(const step::Index& s);
  void execute(const step::Push& s);
  void execute(const step::Stack& s);
  void execute(const step::Arena& s) { frame_.arena.reserve(dim(s.dim)); }
  void execute(const step::Default& s) {
    if (!value(s.value)) value(s.value) = constant(s.constant);
  }
  void execute(const step::View& s);

  const Value& constant(int32_t index) const { return call_.program.constants[static_cast<size_t>(index)]; }
  std::byte* scratch(int64_t bytes_a_thread);
  const Variant* choose(const Slot& slot, int64_t range);

  const CallContext& call_;
  const Function& function_;
  const size_t depth_;
  Frame& frame_;
  size_t at_ = 0;  // the next step
};

// Adds the time until its end to a step's, if times are kept.
class Stopwatch {
 public:
  Stopwatch(const CallContext& call, const Function& function, size_t step) {
    if (call.times == nullptr) return;
    entry_ = &call.times->at(static_cast<size_t>(&function - call.program.functions.data()), step);
    started_ = Clock::now();
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;
  ~Stopwatch() {
    if (entry_ == nullptr) return;
    const auto taken = std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - started_).count();
    entry_->nanoseconds.fetch_add(static_cast<uint64_t>(taken), std::memory_order_relaxed);
    entry_->calls.fetch_add(1, std::memory_order_relaxed);
  }

 private:
  using Clock = std::chrono::steady_clock;
  StepTimes::Entry* entry_ = nullptr;
  Clock::time_point started_;
};

void Activation::run() {
  while (at_ < function_.steps.size()) {
    const size_t here = at_++;
    try {
      std::visit([this](const auto& step) { execute(step); }, function_.steps[here]);
    } catch (const CallError& error) {
      if (error.located) throw;
      CallError located("function " + std::to_string(&function_ - call_.program.functions.data()) + ", step " +
                        std::to_string(here) + " (" + step_name(function_.steps[here].index()) + "): " + error.what());
      located.located = true;
      located.in_data = error.in_data;
      throw located;
    }
  }
}

void Activation::execute(const step::Alloc& s) {
  const std::vector<int64_t> sizes = shape(s.dims);
  if (s.place == kHeap) {
    value(s.value) = make_dense(s.dtype, sizes);
    return;
  }
  Ref<Tensor> fresh = Tensor::make(s.dtype, sizes);
  fresh->data = frame_.arena.at(dim(s.offset), count_bytes(s.dtype, sizes));
  fresh->arena = &frame_.arena;
  value(s.value) = std::move(fresh);
}

void Activation::execute(const step::Callout& s) {
  auto& arguments = call_.state.arguments;
  auto& results = call_.state.results;
  arguments.clear();
  results.clear();
  for (const int32_t in : s.ins) arguments.push_back(in < 0 ? nullptr : value(in).get());
  for (const int32_t out : s.outs) results.push_back(out < 0 ? nullptr : &value(out));
  call_.host.call_out(s.callout, arguments, results);
}

// Room for every thread, `bytes_a_thread` apart.
std::byte* Activation::scratch(int64_t bytes_a_thread) {
  CallState& state = call_.state;
  int64_t bytes;
  if (__builtin_mul_overflow(bytes_a_thread, int64_t{call_.pool.threads()}, &bytes)) throw std::bad_alloc();
  if (!state.scratch || bytes > state.scratch_bytes) {
    state.scratch.reset();
    state.scratch_bytes = 0;
    state.scratch = Ref<Block>(new Block(bytes));
    state.scratch_bytes = bytes;
  }
  return state.scratch->data;
}

// The slot's variant for the sizes of this step, which are in the call's state, and its range.
const Variant* Activation::choose(const Slot& slot, int64_t range) {
  if (slot.variants.empty()) return nullptr;
  CallState& state = call_.state;
  state.sizes.push_back(range);
  const Variant* const found = slot.find(state.sizes, state.holds, state.hint);
  if (found == nullptr || (call_.miss_share > 0 && state.miss(call_.miss_share))) return nullptr;
  found->count();
  return found;
}

void Activation::execute(const step::Kernel& s) {
  const Slot& slot = call_.slots[static_cast<size_t>(s.slot)];
  KernelFn kernel = slot.kernel;
  if (kernel == nullptr) throw CallError("slot " + std::to_string(s.slot) + " holds no kernel");
  CallState& state = call_.state;
  state.buffers.clear();
  state.sizes.clear();
  for (const int32_t buffer : s.buffers) state.buffers.push_back(plain_tensor(buffer).data);
  for (const int32_t size : s.sizes) state.sizes.push_back(dim(size));

  int64_t range = dim(s.range), grain = dim(s.grain), wanted = s.scratch < 0 ? 0 : dim(s.scratch);
  if (range < 0) throw CallError("the range is negative: " + std::to_string(range));
  if (const Variant* const variant = choose(slot, range)) {
    kernel = variant->kernel;
    range = variant->range;
    grain = variant->grain;
    wanted = variant->scratch_bytes;
  }
  if (wanted < 0 || wanted > std::numeric_limits<int64_t>::max() - kAlignment) {
    throw CallError("scratch of " + std::to_string(wanted) + " bytes");
  }
  const int64_t bytes_a_thread = (wanted + kAlignment - 1) / kAlignment * kAlignment;
  std::byte* const memory = wanted == 0 ? nullptr : scratch(bytes_a_thread);

  call_.host.step_aside();
  const Stopwatch watch(call_, function_, at_ - 1);
  const RegionClock clock(call_.watched, s.slot);
  std::atomic<int32_t> status{0};
  call_.pool.parallel_for(range, std::max<int64_t>(grain, 1), [&](int64_t begin, int64_t end, int thread) noexcept {
    if (status.load(std::memory_order_relaxed) != 0) return;
    std::byte* const own = memory == nullptr ? nullptr : memory + thread * bytes_a_thread;
    const int32_t result = kernel(state.buffers.data(), state.sizes.data(), own, begin, end);
    if (result != 0) status.store(result, std::memory_order_relaxed);
  });
  if (const int32_t result = status.load(); result != 0) {
    CallError error("the kernel in slot " + std::to_string(s.slot) + " gave up with status " + std::to_string(result) +
                    ": an index in the data lies outside of its range");
    error.in_data = true;
    throw error;
  }
}

void Activation::execute(const step::Copy& s) {
  Object& source = filled(s.src);
  const bool plain = source.kind == Kind::tensor && static_cast<Tensor&>(source).dtype != kString;
  if (!plain) {  // lists are copied when they are written to, and the host's objects are never written to
    value(s.dst) = value(s.src);
    return;
  }
  const auto& from = static_cast<const Tensor&>(source);
  step_aside_to_copy(from);
  value(s.dst) = copy_dense(from);
}

void Activation::execute(const step::Branch& s) {
  const Tensor& condition = tensor(s.value);
  if (condition.dtype != kBool || count_elements(condition.shape()) != 1) {
    throw CallError(value_name(s.value) + " is no bool scalar");
  }
  if (read_integer(condition, 0) == 0) jump(s.target);
}

void Activation::execute(const step::Call& s) {
  count_round();
  const Function& callee = call_.program.functions[static_cast<size_t>(s.function)];
  Activation inner(call_, callee, depth_ + 1);
  for (size_t i = 0; i < s.ins.size(); ++i) {
    if (s.ins[i] >= 0) inner.value(callee.inputs[i]) = value(s.ins[i]);
  }
  inner.run();
  for (size_t i = 0; i < s.outs.size(); ++i) {
    if (s.outs[i] >= 0) value(s.outs[i]) = inner.output(callee.outputs[i]);
  }
}

void Activation::execute(const step::Scalar& s) {
  const int64_t number = dim(s.dim);
  if (s.dtype == kI32 && number != static_cast<int32_t>(number)) {
    throw CallError(std::to_string(number) + " does not fit an int32");
  }
  Ref<Tensor> fresh = make_dense(s.dtype, {});
  const auto narrow = static_cast<int32_t>(number);
  const uint8_t truth = number != 0;
  if (s.dtype == kI64) std::memcpy(fresh->data, &number, sizeof number);
  if (s.dtype == kI32) std::memcpy(fresh->data, &narrow, sizeof narrow);
  if (s.dtype == kBool) std::memcpy(fresh->data, &truth, sizeof truth);
  value(s.value) = std::move(fresh);
}

void Activation::execute(const step::Index& s) {
  const Tensor& source = tensor(s.src);
  const auto axis = static_cast<size_t>(normalize_axis(s.axis, source.rank));
  const int64_t size = source.shape()[axis], position = dim(s.dim);
  if (position < -size || position >= size) {
    throw CallError("position " + std::to_string(position) + " on an axis of size " + std::to_string(size));
  }
  std::vector<int64_t> sizes(source.shape().begin(), source.shape().end());
  sizes.erase(sizes.begin() + static_cast<std::ptrdiff_t>(axis));
  Ref<Tensor> view = Tensor::make(source.dtype, sizes);
  for (size_t to = 0, from = 0; from < source.shape().size(); ++from) {
    if (from != axis) view->strides()[to++] = source.strides()[from];
  }
  view->data = source.data;
  if (count_elements(sizes) != 0) view->data += (position < 0 ? position + size : position) * source.strides()[axis];
  view->arena = source.arena;
  view->storage = source.storage;
  value(s.dst) = std::move(view);
}

void Activation::execute(const step::Push& s) {
  if (filled(s.src).kind == Kind::list) throw CallError(value_name(s.src) + " is a list, and lists do not nest");
  Value item = out_of_arena(value(s.src));
  Value& target = value(s.list);
  if (!target) target = Ref<List>(new List());
  if (target->kind != Kind::list) throw CallError(value_name(s.list) + " holds no list");
  if (!target->unique()) {  // another register has it: lists are values
    Ref<List> own(new List());
    own->items = static_cast<const List&>(*target).items;
    target = std::move(own);
  }
  static_cast<List&>(*target).items.push_back(std::move(item));
}

// The items of a list register, checked to be alike: empty, or tensors of one type and shape.
std::span<const Value> stackable_items(const Value& list) {
  if (!list) return {};
  if (list->kind != Kind::list) throw CallError("the value to stack is no list");
  const std::vector<Value>& items = static_cast<const List&>(*list).items;
  for (const Value& item : items) {
    const Tensor *first = as_tensor(items[0]), *other = as_tensor(item);
    if (other == nullptr || other->dtype == kString) throw CallError("an item to stack is no tensor of numbers");
    if (other->dtype != first->dtype || !std::ranges::equal(other->shape(), first->shape())) {
      throw CallError("the items to stack differ in type or shape");
    }
  }
  return items;
}

void Activation::execute(const step::Stack& s) {
  const std::span<const Value> items = stackable_items(value(s.list));
  const Tensor* first = items.empty() ? nullptr : as_tensor(items[0]);
  std::vector<int64_t> sizes = first == nullptr ? shape(s.dims) : std::vector<int64_t>();
  if (first != nullptr) sizes.assign(first->shape().begin(), first->shape().end());
  const int32_t axis = normalize_axis(s.axis, static_cast<int32_t>(sizes.size()) + 1);
  sizes.insert(sizes.begin() + axis, static_cast<int64_t>(items.size()));

  Ref<Tensor> joined = make_dense(first == nullptr ? s.dtype : first->dtype, sizes);
  step_aside_to_copy(*joined);
  std::vector<int64_t> strides(joined->strides().begin(), joined->strides().end());
  const int64_t apart = strides[static_cast<size_t>(axis)];
  strides.erase(strides.begin() + axis);
  for (size_t i = 0; i < items.size(); ++i) {
    const auto position = static_cast<int64_t>(s.reverse ? items.size() - 1 - i : i);
    copy_elements(joined->data + position * apart, strides, *as_tensor(items[i]));
  }
  value(s.dst) = std::move(joined);
}

void Activation::execute(const step::View& s) {
  Ref<Tensor> source(&plain_tensor(s.src));
  const std::vector<int64_t> sizes = shape(s.dims);
  const int64_t given = count_elements(source->shape()), wanted = count_elements(sizes);
  if (given != wanted) {
    throw CallError(value_name(s.src) + " has " + std::to_string(given) + " elements, but the dims say " +
                    std::to_string(wanted));
  }
  Ref<Tensor> view = Tensor::make(source->dtype, sizes);
  if (!is_dense(*source)) {
    step_aside_to_copy(*source);
    source = copy_dense(*source);
  }
  view->data = source->data;
  view->arena = source->arena;
  view->storage = source->storage;
  value(s.dst) = std::move(view);
}

}  // namespace

StepTimes::StepTimes(const Program& program) {
  size_t total = 0;
  for (const Function& function : program.functions) {
    first_.push_back(total);
    total += function.steps.size();
  }
  entries_ = std::vector<Entry>(total);
}

void run(const CallContext& call, std::span<Value> inputs, std::span<Value> outputs) {
  const Function& model = call.program.functions[0];
  call.state.holds = call.slots.asks == 0 ? 0 : facts_that_hold(call.program.facts, call.slots.asks, inputs);
  Activation activation(call, model, 0);
  for (size_t i = 0; i < inputs.size(); ++i) activation.value(model.inputs[i]) = std::move(inputs[i]);
  activation.run();
  for (size_t i = 0; i < outputs.size(); ++i) outputs[i] = activation.output(model.outputs[i]);
}

}  // namespace tierup
