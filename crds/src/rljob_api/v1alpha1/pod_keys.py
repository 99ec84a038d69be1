"""The keys that Kubernetes' own objects have, as of 1.37, besides those that `pods.py` knows.

The API server compares an object with what it was key by key, but a key that the schema does not declare only where
both have it: one such key in place of another is no change to it. So the schema declares these, and judges nothing of
what they hold. What it still does not see: a key that is not here in place of another such, and a null of one key in
place of another's.
https://github.com/kubernetes/kubernetes/blob/v1.36.3/staging/src/k8s.io/apiserver/pkg/cel/common/valuesunstructured.go
"""

TEMPLATE_METADATA = (
    "creationTimestamp", "deletionGracePeriodSeconds", "deletionTimestamp", "finalizers", "generateName", "generation",
    "managedFields", "name", "namespace", "ownerReferences", "resourceVersion", "selfLink", "uid",
)  # fmt: skip
POD_SPEC = (
    "activeDeadlineSeconds", "affinity", "automountServiceAccountToken", "dnsConfig", "dnsPolicy", "enableServiceLinks",
    "ephemeralContainers", "evictionResponders", "hostIPC", "hostNetwork", "hostPID", "hostUsers", "hostname",
    "hostnameOverride", "imagePullSecrets", "nodeName", "nodeSelector", "os", "overhead", "preemptionPolicy",
    "priority", "priorityClassName", "readinessGates", "resourceClaims", "resources", "restartPolicy",
    "runtimeClassName", "schedulerName", "schedulingGates", "schedulingGroup", "securityContext", "serviceAccount",
    "serviceAccountName", "setHostnameAsFQDN", "shareProcessNamespace", "subdomain", "terminationGracePeriodSeconds",
)  # fmt: skip
CONTAINER = (
    "args", "command", "env", "envFrom", "image", "imagePullPolicy", "lifecycle", "livenessProbe", "ports",
    "readinessProbe", "resizePolicy", "resources", "restartPolicy", "restartPolicyRules", "securityContext",
    "startupProbe", "stdin", "stdinOnce", "terminationMessagePath", "terminationMessagePolicy", "tty", "volumeDevices",
    "volumeMounts", "workingDir",
)  # fmt: skip
VOLUME = (
    "awsElasticBlockStore", "azureDisk", "azureFile", "cephfs", "cinder", "configMap", "csi", "downwardAPI", "emptyDir",
    "ephemeral", "fc", "flexVolume", "flocker", "gcePersistentDisk", "gitRepo", "glusterfs", "hostPath", "image",
    "iscsi", "nfs", "persistentVolumeClaim", "photonPersistentDisk", "portworxVolume", "projected", "quobyte", "rbd",
    "scaleIO", "secret", "storageos", "vsphereVolume",
)  # fmt: skip
VOLUME_MOUNT = ("bindMountOptions", "mountPropagation", "readOnly", "recursiveReadOnly", "subPathExpr")
ENV_SOURCE = ("optional",)
