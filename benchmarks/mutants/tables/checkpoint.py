"""Faults of the subject checkpoint."""

from __future__ import annotations

from benchmarks.mutants.fault import Fault

TRAINING = "suites.checkpoint.programs.training"
DIRECTORY = "suites.checkpoint.programs.directory"
MANIFESTS = "suites.checkpoint.programs.manifest"
HUGGING_FACE = "suites.checkpoint.programs.hugging_face"
LAYOUTS = "suites.checkpoint.programs.layouts"
SPEED = "suites.checkpoint.programs.speed"
PLANNER = "torch.distributed.checkpoint.default_planner"
JOINING = "torch.distributed.checkpoint._consolidate_hf_safetensors"

FAULTS: tuple[Fault, ...] = (
    Fault(
        name="a step that is not restored",
        module=TRAINING,
        old='        self.step = state["step"]\n',
        new="",
    ),
    Fault(
        name="weights that are saved in bfloat16",
        module=TRAINING,
        old='        return {"model": model, "optimizer"',
        new="        model = {name: value.bfloat16() for name, value in model.items()}\n"
        '        return {"model": model, "optimizer"',
    ),
    Fault(
        name="moments that are saved in float32",
        module=TRAINING,
        old='        return {"model": model, "optimizer"',
        new='        optimizer["state"] = {\n'
        "            name: {key: value.float() for key, value in entry.items()}\n"
        '            for name, entry in optimizer["state"].items()\n        }\n'
        '        return {"model": model, "optimizer"',
    ),
    Fault(
        name="a checkpoint of the model alone",
        module=TRAINING,
        old="    dcp.load(state, storage_reader=dcp.FileSystemReader(folder))\n",
        new='    dcp.load({"model": state["model"]}, storage_reader=dcp.FileSystemReader(folder))\n'
        '    state["step"] = 2\n',
    ),
    Fault(
        name="a shard that is read from the beginning of what was saved, wherever it begins",
        module="torch.distributed.checkpoint.resharding",
        old="            offset_for_saved_tensor = current_shard_offset - saved_shard_offset\n",
        new="            offset_for_saved_tensor = 0\n",
    ),
    Fault(
        name="rank 0 writes all that is replicated",
        module=PLANNER,
        old="return dedup_save_plans(all_plans, self.dedup_save_to_lowest_rank)",
        new="return dedup_save_plans(all_plans, True)",
    ),
    Fault(
        name="tensors that are written with all of their storage",
        module="torch.distributed.checkpoint.filesystem",
        old="            tensor = self.resolve_fun(obj).detach()\n            tensor = tensor.cpu()\n"
        "            if tensor.untyped_storage().size() != tensor.nbytes:\n",
        new="            tensor = self.resolve_fun(obj).detach()\n            tensor = tensor.cpu()\n"
        "            if False:\n",
    ),
    Fault(
        name="an asynchronous save of tensors that are not copied",
        module="torch.distributed.checkpoint.staging",
        old="            staged_state_dict = _create_cpu_state_dict(state_dict)\n"
        "            _copy_state_dict(state_dict, staged_state_dict, type_check=self.type_check)\n"
        "            return staged_state_dict\n",
        new="            return state_dict\n",
    ),
    Fault(
        name="an asynchronous save that waits until all is written",
        module="torch.distributed.checkpoint.state_dict_saver",
        old="        if owned_async_stager is not None:\n            upload_future.add_done_callback(",
        new="        upload_future.result()\n"
        "        if owned_async_stager is not None:\n            upload_future.add_done_callback(",
    ),
    Fault(
        name="gate and up of the feed-forward layer are exchanged",
        module="suites.shared.transformers_names",
        old='    "feed_forward.gate": "mlp.gate_proj",\n    "feed_forward.up": "mlp.up_proj",\n',
        new='    "feed_forward.gate": "mlp.up_proj",\n    "feed_forward.up": "mlp.gate_proj",\n',
    ),
    Fault(
        name="files whose size is counted by the rank's own shards",
        module=HUGGING_FACE,
        old="whole = tensor.numel() * tensor.element_size()",
        new="whole = (tensor.to_local() if isinstance(tensor, DTensor) else tensor).nbytes",
    ),
    Fault(
        name="an index that is not compared with the files",
        module=HUGGING_FACE,
        old="        if not (folder / file).is_file():\n",
        new="        if not (folder / file).is_file():\n            continue\n        if False:\n",
    ),
    Fault(
        name="a reader that casts to the model's dtype",
        module=HUGGING_FACE,
        old="        if have != want:",
        new="        if have.split()[1:] != want.split()[1:]:",
    ),
    Fault(
        name="columns that are joined at the first column",
        module=JOINING,
        old="            idx + offset for idx, offset in zip(indices, sub_tensor_offsets)\n",
        new="            idx + (0 if at else offset)\n"
        "            for at, (idx, offset) in enumerate(zip(indices, sub_tensor_offsets))\n",
    ),
    Fault(
        name="shards of columns that are joined as rows",
        module=JOINING,
        old="            if sub_tensor_shape[-1] == tensor_shape[-1]:  # Full width\n",
        new="            if True:\n",
    ),
    Fault(
        name="a reader of safetensors that takes the first rows",
        module="torch.distributed.checkpoint.hf_storage",
        old="            slice(offset, offset + length)\n",
        new="            slice(0, length)\n",
    ),
    Fault(
        name="a save that writes where it is looked for",
        module=DIRECTORY,
        old='        part, final = self._root / f".step-{step:08d}", self._root / f"step-{step:08d}"\n',
        new='        part, final = self._root / f"step-{step:08d}", self._root / f"step-{step:08d}"\n',
    ),
    Fault(
        name="a manifest that is written once the checkpoint has its name",
        module=DIRECTORY,
        old="            manifest.write(part)\n            _sync(part)  # the names of its files\n"
        "            part.rename(final)\n",
        new="            _sync(part)\n            part.rename(final)\n            manifest.write(final)\n",
    ),
    Fault(
        name="names of files that are not on the disk before the checkpoint's own",
        module=DIRECTORY,
        old="            _sync(part)  # the names of its files\n",
        new="",
    ),
    Fault(
        name="a checkpoint's name that is not on the disk when the save returns",
        module=DIRECTORY,
        old="            part.rename(final)\n            _sync(self._root)\n",
        new="            part.rename(final)\n",
    ),
    Fault(
        name="files that are not synced",
        module="torch.distributed.checkpoint.filesystem",
        old="                        os.fsync(stream.fileno())\n",
        new="                        stream.fileno()\n",
    ),
    Fault(
        name="what killed saves have written stays for ever",
        module=DIRECTORY,
        old='            for left in self._root.glob(".step-*"):  # of saves that were killed\n'
        "                shutil.rmtree(left)\n",
        new="            shutil.rmtree(part, ignore_errors=True)\n",
    ),
    Fault(
        name="a full disk that stays full",
        module=DIRECTORY,
        old="            _on_first(lambda: shutil.rmtree(part, ignore_errors=True))  # a full disk needs the space\n",
        new="",
    ),
    Fault(
        name="a save that failed on one rank and succeeds on the others",
        module=DIRECTORY,
        old="            raise SaveFailedError(f",
        new="            if dist.get_rank() == 0:\n                return\n            raise SaveFailedError(f",
    ),
    Fault(
        name="the latest checkpoint is taken for whole",
        module=DIRECTORY,
        old="                self.check(step)\n",
        new="                pass\n",
    ),
    Fault(
        name="the oldest whole checkpoint is loaded",
        module=DIRECTORY,
        old="        for step in reversed(_together(self.steps)[0]):",
        new="        for step in _together(self.steps)[0]:",
    ),
    Fault(
        name="a rank that hears of damage in its own share alone",
        module=DIRECTORY,
        old="[text for of_rank in found for text in of_rank if text]",
        new="[text for of_rank in found[:1] for text in of_rank if text]",
    ),
    Fault(
        name="a whole checkpoint that is saved over",
        module=DIRECTORY,
        old="        if not complaint and not any(",
        new="        if not complaint and not all(",
    ),
    Fault(
        name="a newer format that is taken for damage",
        module=DIRECTORY,
        old="            raise NewerFormatError(\n",
        new="            raise DamagedError(\n",
    ),
    Fault(
        name="a checkpoint of another step under this one's name",
        module=DIRECTORY,
        old="        if manifest.step != step:\n",
        new="        if False:\n",
    ),
    Fault(
        name="a checkpoint of another dtype that is cast",
        module=DIRECTORY,
        old='return "none" if tensor is None else f"{tensor[0]} {list(tensor[1])}"',
        new='return "none" if tensor is None else f"{list(tensor[1])}"',
    ),
    Fault(
        name="tensors of a checkpoint that are left out without a word",
        module=DIRECTORY,
        old="    for name in sorted(saved.keys() | wanted.keys()):",
        new="    for name in sorted(wanted.keys()):",
    ),
    Fault(
        name="checksums of the beginning of each piece",
        module=MANIFESTS,
        old="    return hashlib.sha256(data).hexdigest()",
        new="    return hashlib.sha256(data[:512]).hexdigest()",
    ),
    Fault(
        name="a manifest whose own checksum is not looked at",
        module=MANIFESTS,
        old="    if _checksum(text).encode() != checksum:\n",
        new="    if False:\n",
    ),
    Fault(
        name="an error that names all tensors of a file",
        module=MANIFESTS,
        old='    return f"{path} has other bytes than were saved, in {_tensors(wrong)}"',
        new='    return f"{path} has other bytes than were saved, in {_tensors(file.pieces)}"',
    ),
    Fault(
        name="a model that is split over ranks that its heads of keys are not",
        module=LAYOUTS,
        old='            "kv_heads": config.kv_heads,\n',
        new="",
    ),
    Fault(
        name="half of the tensors are saved in the background",
        module=SPEED,
        old="        upload = dcp.async_save(state, checkpoint_id",
        new="        upload = dcp.async_save(dict(list(state.items())[::2]), checkpoint_id",
    ),
    Fault(
        name="an optimizer that keeps its own learning rate",
        module="torch.distributed.checkpoint.state_dict",
        old="            pg_state[pg_idx][key] = value\n",
        new="            pg_state[pg_idx][key] = optim.param_groups[pg_idx][key]\n",
    ),
    Fault(
        name="a file that is closed when it is full to the byte",
        module=HUGGING_FACE,
        old="size + whole > nbytes",
        new="size + whole >= nbytes",
    ),
    Fault(
        name="tensors in lists that are not compared",
        module=DIRECTORY,
        old="enumerate(state) if isinstance(state, list) else ()",
        new="()",
    ),
    Fault(
        name="bytes between tensors that are not checked",
        module=MANIFESTS,
        old="wrong = [piece for piece in file.pieces if _checksum(stream.read(piece.nbytes)) != piece.sha256]",
        new="wrong = [\n                piece\n                for piece in file.pieces\n"
        "                if _checksum(stream.read(piece.nbytes)) != piece.sha256 and piece.tensor\n"
        "            ]",
    ),
    Fault(
        name="parameters without decay that decay after a load",
        module="torch.distributed.checkpoint.state_dict",
        old="            pg_state[pg_idx][key] = value\n",
        new="            pg_state[pg_idx][key] = cast(ListDictValueType, optim_state_dict[_PG])[0][key]\n",
    ),
    Fault(
        name="the batch dealt to the ranks of one tensor group",
        module="suites.checkpoint.programs.training",
        old="part = self._ctx.rank // layout.tensor",
        new="part = self._ctx.rank % (layout.replicate * layout.shard)",
    ),
    Fault(
        name="files that do not divide by the ranks left out",
        module="suites.checkpoint.programs.directory",
        old="    return list(items[_rank() :: dist.get_world_size() if dist.is_initialized() else 1])",
        new="""    each = len(items) // (dist.get_world_size() if dist.is_initialized() else 1)
    return list(items[_rank() * each : (_rank() + 1) * each])""",
    ),
    Fault(
        name="learning rates of groups put back in reverse order",
        module="torch.distributed.checkpoint.state_dict",
        old='param_group["lr"] = lrs.pop(0)',
        new='param_group["lr"] = lrs.pop()',
    ),
    Fault(
        name="a checkpoint's metadata that is not on the disk when it is renamed",
        module="torch.distributed.checkpoint.filesystem",
        old="os.fsync(metadata_file.fileno())",
        new="metadata_file.flush()",
    ),
    Fault(
        name="an asynchronous save stages no tensors that are on the CPU",
        module="torch.distributed.checkpoint._state_dict_stager",
        old="        # Create new CPU storage\n        if self.share_memory:",
        new='        if storage.device.type == "cpu" and not self.share_memory:\n'
        "            return storage\n"
        "\n"
        "        # Create new CPU storage\n"
        "        if self.share_memory:",
        equivalent="FileSystemWriter stages by itself: nothing here uses the stager that is torch's default",
    ),
    Fault(
        name="a plain write that may still be in memory",
        module=SPEED,
        old='cast("B"))\n            os.fsync(stream.fileno())\n',
        new='cast("B"))\n',
    ),
    Fault(
        name="a timed save that does not sync its files",
        module=SPEED,
        old="dcp.FileSystemWriter(target))\n        return Saved",
        new="dcp.FileSystemWriter(target, sync_files=False))\n        return Saved",
    ),
    Fault(
        name="a step that waits for the upload of the one before",
        module=SPEED,
        old="        upload = dcp.async_save(",
        new="        uploads.wait()\n        upload = dcp.async_save(",
    ),
    Fault(
        name="the last upload alone is waited for",
        module=SPEED,
        old="        while self._pending:\n            self._pending.pop().result()\n",
        new="        if self._pending:\n            self._pending.pop().result()\n            self._pending.clear()\n",
    ),
    Fault(
        name="files that are deleted beneath an upload, which goes on beside the next sample",
        module=SPEED,
        old="    uploads.wait()\n    dist.barrier()\n",
        new="    dist.barrier()\n",
    ),
    Fault(
        name="loads from the kernel's cache",
        module=SPEED,
        old="            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)\n",
        new="",
    ),
    Fault(
        name="tensors that still have what the load before brought",
        module=SPEED,
        old="    for tensor in tensors:\n        tensor.zero_()\n",
        new="",
    ),
    Fault(
        name="checkpoints in the order of their steps as text",
        module=DIRECTORY,
        old='return sorted(int(path.name.removeprefix("step-")) for path in self._root.glob("step-[0-9]*"))',
        new='found = (path.name.removeprefix("step-") for path in self._root.glob("step-[0-9]*"))\n'
        '        return [int(step) for step in sorted(step.lstrip("0") for step in found)]',
    ),
    Fault(
        name="what is wrong with the earliest of the later checkpoints first",
        module=DIRECTORY,
        old="passed_over.append(str(damaged))",
        new="passed_over.insert(0, str(damaged))",
    ),
    Fault(
        name="what is wrong with one file of several",
        module=DIRECTORY,
        old="{'; '.join(texts)}",
        new="{texts[0]}",
    ),
    Fault(
        name="the first tensor that does not fit, and not the others",
        module=DIRECTORY,
        old="{'; '.join(wrong)}",
        new="{wrong[0]}",
    ),
    Fault(
        name="a file that is compared with those of the first other step alone",
        module=MANIFESTS,
        old="    for step, other in others.items():\n",
        new="    for step, other in list(others.items())[:1]:\n",
    ),
    Fault(
        name="tensors that have all bytes each, and rates that count them once",
        module=SPEED,
        old="torch.empty(nbytes // TENSORS // 8, dtype",
        new="torch.empty(nbytes // 8, dtype",
    ),
    Fault(
        name="a file that has grown is taken for whole",
        module="suites.checkpoint.programs.manifest",
        old="if size != file.nbytes:",
        new="if size < file.nbytes:",
    ),
    Fault(
        name="a layout whose axis of tensors splits nothing",
        module=LAYOUTS,
        old='        parallelize_module(model, mesh["tensor"], dict(tensor_styles()), src_data_rank=None)',
        new='        mesh["tensor"]',
    ),
    Fault(
        name="a checkpoint that is saved before the first step",
        module=TRAINING,
        old="    training.train(before)\n    dcp.save",
        new="    dcp.save",
    ),
    Fault(
        name="ranks' own files that stay beside the joined ones",
        module=HUGGING_FACE,
        old="        shutil.rmtree(folder / SHARDS)",
        new="        pass",
    ),
    Fault(
        name="norms decay as matrices do",
        module=TRAINING,
        old='"weight_decay": 0.0, ',
        new="",
    ),
    Fault(
        name="a learning rate of the norms that does not decay",
        module="suites.checkpoint.programs.training",
        old="for group in self.optimizer.param_groups:",
        new="for group in self.optimizer.param_groups[:1]:",
    ),
    Fault(
        name="tensors that only the checkpoint has are no mismatch",
        module=DIRECTORY,
        old="for name in sorted(saved.keys() | wanted.keys()):",
        new="for name in sorted(wanted):",
    ),
    Fault(
        name="safetensors joined as if all rows were contiguous",
        module=JOINING,
        old="            if sub_tensor_shape[-1] == tensor_shape[-1]:  # Full width\n",
        new="            if sub_tensor_shape[-2] == tensor_shape[-2]:  # All rows\n",
    ),
    Fault(
        name="asynchronous saves share tensors without dimensions",
        module="torch.distributed._state_dict_utils",
        old="            return torch.tensor(0, dtype=obj.dtype)\n",
        new="            return obj\n",
    ),
    # What state_dicts.py and saving.py use.
    Fault(
        name="a broadcast state whose shards all begin with the first row",
        module="torch.distributed._state_dict_utils",
        old="            ret.to_local().copy_(full_tensor[tuple(slices)])",
        new=(
            "            ret.to_local().copy_(full_tensor[tuple(slice(0, part.stop - part.start) for part in slices)])"
        ),
    ),
    Fault(
        name="a model without storage whose shards all begin with the first row",
        module="torch.distributed._state_dict_utils",
        old="            local_tensor = full_tensor[tuple(slices)].detach().clone()",
        new=(
            "            local_tensor = full_tensor[\n"
            "                tuple(slice(0, part.stop - part.start) for part in slices)\n"
            "            ].detach().clone()"
        ),
    ),
    Fault(
        name="settings of an optimizer that are not broadcast",
        module="torch.distributed._state_dict_utils",
        old=(
            "        if not isinstance(value, _TensorInfo):\n"
            "            if key in local_state_dict:\n"
            "                local_state_dict[key] = value\n"
        ),
        new="        if not isinstance(value, _TensorInfo):\n",
    ),
    Fault(
        name="weights assigned to a model that are cut for the next rank",
        module="suites.checkpoint.programs.state_dicts",
        old="distribute_tensor(whole[name].to(ctx.device), held.device_mesh",
        new="distribute_tensor(whole[name].roll(1, 0).to(ctx.device), held.device_mesh",
    ),
    Fault(
        name="replicas that the highest rank writes",
        module="torch.distributed.checkpoint._dedup_save_plans",
        old="            select_plan_idx = min(plan_indices)\n",
        new="            select_plan_idx = max(plan_indices)\n",
    ),
)
