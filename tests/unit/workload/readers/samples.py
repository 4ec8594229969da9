"""One small file in each format, as its source would write it: three jobs that can be read."""

SAMPLES = {
    "rota": (
        "job_id,submit_s,duration_s,num_gpus,vc\na,0,60,1,red\nb,5,3600,8,blue\nc,9.5,0.5,2,red\n"
    ),
    "tiresias": (
        "job_id,num_gpu,submit_time,iterations,model_name,duration,interval\n"
        "0,1,0,600,vgg19,160,30\n"
        "1,8,30,130,vgg11,140,20\n"
        "2,2,50,150,resnet50,120,20\n"
    ),
    "philly": (
        "timestamp,duration,num_gpus,gpu_time,cluster\n"
        "2017-10-03 00:00:05,600,1,600,red\n"
        "2017-10-03 00:01:00,3600,8,28800,blue\n"
        "2017-10-03 00:02:00,70,2,140,red\n"
    ),
    "philly-json": """[
    {
        "status": "Pass",
        "vc": "red",
        "jobid": "application_1_1",
        "attempts": [
            {
                "start_time": "2017-10-03 00:01:00",
                "end_time": "2017-10-03 00:11:00",
                "detail": [{"ip": "m1", "gpus": ["gpu0", "gpu1"]}]
            }
        ],
        "submitted_time": "2017-10-03 00:00:00",
        "user": "ann"
    },
    {
        "status": "Failed",
        "vc": "blue",
        "jobid": "application_1_2",
        "attempts": [
            {
                "start_time": "2017-10-03 01:00:00",
                "end_time": "2017-10-03 01:00:30",
                "detail": [
                    {"ip": "m1", "gpus": ["gpu0"]},
                    {"ip": "m2", "gpus": ["gpu3", "gpu4", "gpu5"]}
                ]
            },
            {
                "start_time": "2017-10-03 02:00:00",
                "end_time": "2017-10-03 02:00:30",
                "detail": [{"ip": "m1", "gpus": ["gpu0", "gpu1", "gpu2", "gpu3"]}]
            }
        ],
        "submitted_time": "2017-10-03 00:30:00",
        "user": "bob"
    },
    {
        "status": "Killed",
        "vc": "red",
        "jobid": "application_1_3",
        "attempts": [
            {
                "start_time": "2017-10-03 00:50:00",
                "end_time": "2017-10-03 00:51:10",
                "detail": [{"ip": "m9", "gpus": ["gpu7"]}]
            }
        ],
        "submitted_time": "2017-10-03 00:40:00",
        "user": "ann"
    }
]
""",
    "helios": (
        "job_id,user,vc,gpu_num,state,submit_time,start_time,end_time,duration,queue\n"
        "j1,u1,vcA,1,COMPLETED,2020-04-01 00:00:10,2020-04-01 00:00:20,2020-04-01 00:01:20,60,10\n"
        "j2,u2,vcB,16,FAILED,2020-04-01 00:01:10,2020-04-01 00:01:10,2020-04-01 00:01:17,7,0\n"
        "j3,u1,vcA,8,CANCELLED,2020-04-02 00:00:10,2020-04-02 00:00:10,2020-04-03 00:00:10,,0\n"
    ),
    "alibaba-2020": (
        "job1,worker,2,Terminated,1000.0,1600.0,600.0,29.3,100.0,T4\n"
        "job1,ps,1,Terminated,1010.0,1590.0,600.0,29.3,0.0,\n"
        "job2,tensorflow,1,Failed,1200.0,1260.0,600.0,29.3,25.0,MISC\n"
        "job3,worker,10,Terminated,1300.0,1400.0,600.0,29.3,50.0,V100\n"
    ),
    "alibaba-2023": (
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,"
        "creation_time,deletion_time,scheduled_time\n"
        "pod-1,4000,8192,1,460,,LS,Succeeded,100,700,110\n"
        "pod-2,4000,8192,8,1000,V100M16|V100M32,BE,Failed,200,260,200\n"
        "pod-3,4000,8192,1,1000,,LS,Running,300,4000,1000\n"
    ),
    "pollux": (
        "name,time,application,num_replicas,batch_size\n"
        "cifar10-0,100,cifar10,6,2048\n"
        "bert-1,150,bert,8,384\n"
        "ncf-2,230,ncf,1,32768\n"
    ),
    "slurm": (
        "JobID|User|Partition|State|Submit|Start|Elapsed|AllocTRES|ReqTRES\n"
        "101|ann|gpu|COMPLETED|2024-01-05T10:00:00|2024-01-05T10:00:05|00:10:00|"
        "billing=8,cpu=8,gres/gpu:a100=2,gres/gpu=2,mem=64G,node=1|cpu=8,gres/gpu=2\n"
        "102_7|bob|long|CANCELLED by 1001|2024-01-05T10:00:20|2024-01-05T10:30:00|1-02:03:04|"
        "cpu=64,gres/gpu:a100=8,gres/gpu:v100=8,node=2|cpu=64,gres/gpu=16\n"
        "103|ann|gpu|TIMEOUT|2024-01-05T11:00:00|2024-01-05T11:00:00|02:00:00||gres/gpu=1\n"
    ),
}
